# NVIDIA GPUs: torch and vLLM of the lock's extra `cuda`, and our wheels.
#
#   docker build -f docker/cuda.Dockerfile -t retool:cuda .
#
# Not built or run on a GPU here; hadolint and the tests read it.

FROM python:3.11-slim-bookworm AS wheels
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
COPY . .
RUN uv build --all-packages --wheel --out-dir /wheels \
    && uv export --frozen --no-emit-workspace --no-dev --extra cuda --no-hashes -o /wheels/requirements.txt

FROM python:3.11-slim-bookworm

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# vLLM compiles kernels at its start; the wheels of torch bring CUDA itself. Debian removes old
# versions from its mirrors, so pinned ones would stop the build (hence the ignored rule).
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git \
    && rm -rf /var/lib/apt/lists/*

COPY --from=wheels /wheels /opt/retool/wheels
COPY docker/freeze.py /opt/retool/freeze.py
# Exactly the lock: torch 2.13.0 and vllm 0.32.0.
RUN pip install -r /opt/retool/wheels/requirements.txt \
    && pip install --no-deps /opt/retool/wheels/*.whl \
    && python3 /opt/retool/freeze.py cuda

# A user for the sandbox service, so that programs of the model never run as root; then everything
# imports.
RUN useradd --system --uid 64000 --no-create-home --shell /usr/sbin/nologin retool-sandbox \
    && python3 -c "import torch, ray, transformers, megatron.core, retool_trainer.cli, retool_sandbox"

WORKDIR /workspace
COPY configs configs
CMD ["retool-trainer", "--help"]
