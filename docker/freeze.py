"""Print or check the versions that an image must not move: `freeze.py npu [--check FILE]`.

Standard library only: it runs in the base image before anything of ours is installed. The wanted
versions are those of retool_trainer/launch/_versions.py, and a test keeps the two equal.
"""

import importlib.metadata
import sys
from pathlib import Path

WANTED = {
    "cpu": {"torch": "2.13.0", "megatron-core": "0.16.1"},
    "cuda": {"torch": "2.13.0", "megatron-core": "0.16.1", "vllm": "0.32.0"},
    "npu": {
        "torch": "2.10.0",
        "torch-npu": "2.10.0.post4",
        "vllm": "0.23.0",
        "vllm-ascend": "0.23.0",
        "transformers": "5.5.4",
        "triton-ascend": "3.2.2",
    },
}
# Frozen at whatever the base image has; their versions are not ours to choose. Ray is not among
# them: the NPU base has 2.48, the trainer needs 2.60, and our vLLM, one process group a node, none.
ALSO_FROZEN = ("numpy", "torchvision", "torchaudio", "xgrammar", "compressed-tensors")


def installed(name: str) -> str | None:
    """Version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def faults(platform: str) -> list[str]:
    """Wanted versions that are not there; a local part (+cpu) names the build, not the release."""
    found = []
    for name, wanted in WANTED[platform].items():
        version = installed(name)
        if version is None or version.partition("+")[0] != wanted:
            found.append(f"{name} is {version or 'not installed'}, {wanted} is the tested one")
    return found


def main() -> int:
    """Print constraints, or with --check compare with a file of them."""
    platform = sys.argv[1]
    wrong = faults(platform)
    if len(sys.argv) == 4 and sys.argv[2] == "--check":
        for line in Path(sys.argv[3]).read_text(encoding="utf-8").splitlines():
            name, _, version = line.partition("==")
            if installed(name) != version:
                wrong.append(f"{name} was moved from {version} to {installed(name)}")
    else:
        for name in sorted([*WANTED[platform], *ALSO_FROZEN]):
            version = installed(name)
            if version is not None:
                sys.stdout.write(f"{name}=={version}\n")
    for line in wrong:
        sys.stderr.write(f"FAIL  {line}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
