# A laptop or a CI machine: everything but the accelerators. Runs the quickstart.
#
#   docker build -f docker/cpu.Dockerfile -t retool:cpu .
#   docker run --rm -it --shm-size 2g --security-opt seccomp=unconfined \
#     --security-opt apparmor=unconfined retool:cpu
#
# Not built here (no Docker daemon at hand); hadolint and the tests read it.

FROM python:3.11-slim-bookworm AS wheels
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
COPY . .
RUN uv build --all-packages --wheel --out-dir /wheels \
    && uv export --frozen --no-emit-workspace --no-dev --no-hashes -o /wheels/requirements.txt

FROM python:3.11-slim-bookworm

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

COPY --from=wheels /wheels /opt/retool/wheels
COPY docker/freeze.py /opt/retool/freeze.py
# Exactly the lock: torch 2.13.0 (its CUDA part is along, and unused).
RUN pip install -r /opt/retool/wheels/requirements.txt \
    && pip install --no-deps /opt/retool/wheels/*.whl \
    && python3 /opt/retool/freeze.py cpu

# Nothing here needs root: the trainer runs as a person, the sandbox service may run as a user
# of its own. At last, everything imports.
RUN useradd --create-home --uid 1000 retool \
    && useradd --system --uid 64000 --no-create-home --shell /usr/sbin/nologin retool-sandbox \
    && install -d -o retool -g retool /workspace \
    && python3 -c "import torch, ray, transformers, megatron.core, retool_trainer.cli, retool_sandbox"

USER 1000
WORKDIR /workspace
COPY --chown=retool:retool configs configs
CMD ["retool-trainer", "run", "--config", "configs/quickstart.yaml"]
