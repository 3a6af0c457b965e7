# Ascend NPU: vllm-ascend's image, Megatron-core, MindSpeed, and our wheels.
#
#   docker build -f docker/npu.Dockerfile --build-arg REGISTRY=HOST/ -t retool:npu-a2 .
#   docker build -f docker/npu.Dockerfile --build-arg REGISTRY=HOST/ --build-arg CHIP=-a3 -t retool:npu-a3 .
#
# REGISTRY is the registry that vllm-ascend's documentation names, with a slash at its end.
# Not built here: no machine at hand reaches that registry. hadolint and the tests read it.

ARG REGISTRY=
ARG VLLM_ASCEND=0.23.0
# Empty for Atlas A2, -a3 for Atlas A3.
ARG CHIP=

# --- our wheels, from the sources ------------------------------------------------------------------
FROM python:3.11-slim-bookworm AS wheels
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
COPY . .
RUN uv build --all-packages --wheel --out-dir /wheels

# --- the image -------------------------------------------------------------------------------------
FROM ${REGISTRY}ascend/vllm-ascend:v${VLLM_ASCEND}${CHIP}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# MindSpeed has no release for this Megatron; the head of its branch core_r0.16.0 of 2026-07-10.
ARG MINDSPEED_REPOSITORY=https://github.com/Ascend/MindSpeed.git
ARG MINDSPEED_COMMIT=e4772499f7eb9fa9a68919dd1eaddef00e915b2d
# The release of Megatron's branch core_r0.16.0.
ARG MEGATRON_CORE=0.16.1

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# 1. What the base image has tested together stays: whatever is installed later may not move it.
COPY docker/freeze.py /opt/retool/freeze.py
RUN python3 /opt/retool/freeze.py npu > /opt/retool/constraints.txt \
    && cat /opt/retool/constraints.txt

# 2. Megatron and MindSpeed without their requirements: those of MindSpeed ask for numpy < 1.27.
RUN python3 -m pip install -c /opt/retool/constraints.txt --no-deps "megatron-core==${MEGATRON_CORE}" \
    && git init -q /opt/mindspeed \
    && git -C /opt/mindspeed fetch -q --depth 1 "${MINDSPEED_REPOSITORY}" "${MINDSPEED_COMMIT}" \
    && git -C /opt/mindspeed checkout -q FETCH_HEAD \
    && python3 -m pip install --no-deps --no-build-isolation /opt/mindspeed

# 3. Our wheels, as files so that no package of their names is taken from the registry, and what they
# need besides. This raises Ray, which the base has for vLLM's own clusters, from 2.48 to the trainer's.
COPY --from=wheels /wheels /opt/retool/wheels
RUN python3 -m pip install -c /opt/retool/constraints.txt /opt/retool/wheels/*.whl "tensorboard>=2.20" \
    && python3 /opt/retool/freeze.py npu --check /opt/retool/constraints.txt

# 4. A user for the sandbox service, so that programs of the model never run as root.
# 5. Everything imports. No device is there while building, so what touches one is only looked for.
RUN useradd --system --uid 64000 --no-create-home --shell /usr/sbin/nologin retool-sandbox \
    && TORCH_DEVICE_BACKEND_AUTOLOAD=0 python3 -c "import importlib.util as u; \
assert all(map(u.find_spec, ('torch_npu', 'mindspeed', 'megatron.core', 'vllm', 'vllm_ascend'))); \
import torch, ray, transformers, retool_trainer.cli, retool_trainer.platform, retool_sandbox"

WORKDIR /workspace
COPY configs configs
CMD ["retool-trainer", "--help"]
