"""The lock, the table of versions, the images and their documentation say the same."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from retool_trainer.config import load_config
from retool_trainer.launch import _versions as versions
from retool_trainer.launch import make_plan

ROOT = Path(__file__).resolve().parents[4]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


def _lock() -> list[dict[str, Any]]:
    return tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]


def _freeze() -> Any:
    spec = importlib.util.spec_from_file_location("freeze", DOCKER / "freeze.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("platform", ["cuda", "npu"])
def test_the_locks_extra_has_the_versions_of_the_table(platform: str) -> None:
    (trainer,) = [package for package in _lock() if package["name"] == "retool-trainer"]
    extra = trainer["optional-dependencies"][platform]
    locked = {item["name"]: item["version"] for item in extra if "version" in item}
    single = {p["name"]: p["version"] for p in _lock()}
    for name, version in versions.PACKAGES[platform].items():
        if name != "triton-ascend":  # comes with the image: the wheel is not on PyPI
            assert locked.get(name, single[name]) == version, name


def test_the_default_environment_has_the_versions_of_the_table() -> None:
    found: dict[str, set[str]] = {}
    for package in _lock():
        found.setdefault(package["name"], set()).add(package["version"])
    for name, version in versions.PACKAGES["cpu"].items():
        assert version in found[name]


def test_the_images_freeze_the_versions_of_the_table() -> None:
    assert {k: dict(v) for k, v in versions.PACKAGES.items()} == _freeze().WANTED


def test_the_npu_image_is_built_on_the_release_of_the_table() -> None:
    text = (DOCKER / "npu.Dockerfile").read_text(encoding="utf-8")
    assert f"ARG VLLM_ASCEND={versions.PACKAGES['npu']['vllm-ascend']}" in text
    assert f"ARG MEGATRON_CORE={versions.PACKAGES['cpu']['megatron-core']}" in text
    assert re.search(r"ARG MINDSPEED_COMMIT=[0-9a-f]{40}\n", text)
    freeze, megatron, ours = (
        text.index(part) for part in ("> /opt/retool/constraints.txt", "megatron-core==", "--from=")
    )
    assert freeze < megatron < ours  # frozen before anything else is installed


@pytest.mark.parametrize("name", ["README.md", "cuda.Dockerfile", "cpu.Dockerfile"])
def test_versions_named_in_passing_are_those_of_the_table(name: str) -> None:
    text = (DOCKER / name).read_text(encoding="utf-8")
    allowed = {package: set[str]() for package in ("torch", "vllm", "vllm-ascend", "torch_npu")}
    for row in versions.PACKAGES.values():
        for package, version in row.items():
            allowed.setdefault(package.replace("torch-npu", "torch_npu"), set()).add(version)
    for package, version in re.findall(
        r"\b(torch_npu|torch|vllm-ascend|vLLM|vllm) (\d+\.\d+\.\d+(?:\.post\d+)?)", text
    ):
        assert version in allowed[package.lower()], (package, version)


def test_freeze_prints_constraints_and_notices_what_moved(tmp_path: Path) -> None:
    command = [sys.executable, str(DOCKER / "freeze.py"), "cpu"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert re.search(r"^torch==", printed.stdout, re.MULTILINE)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(re.sub(r"(?m)^numpy==.*$", "numpy==1.0.0", printed.stdout))
    checked = subprocess.run(
        [*command, "--check", str(constraints)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 1
    assert "numpy was moved from 1.0.0" in checked.stderr


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if hadolint is None:
        pytest.skip("hadolint is not installed; it is in the group lint: uv sync --group lint")
    result = subprocess.run(
        [hadolint, "--no-color", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "")


def test_the_compose_file_starts_ray_as_the_plan_says() -> None:
    compose = yaml.safe_load((DOCKER / "two-nodes.compose.yaml").read_text(encoding="utf-8"))
    config = load_config(ROOT / "configs" / "qwen3-4b-npu-a2.yaml", ["engine.sync=broadcast"])
    plan = make_plan(config, nodes=2)
    for service, line in zip(("head", "worker"), plan.ray_commands, strict=False):
        planned = set(line.partition(": ")[2].replace("NODE0", "").split())
        words = compose["services"][service]["command"].replace("--block ", "")
        written = set(re.sub(r"\$\{HEAD[^}]*\}", "", words).split())
        assert written == planned
    devices = compose["services"]["worker"]["devices"]
    assert sum("davinci" in d and d[-1].isdigit() for d in devices) == config.devices_per_node


def test_docker_run_in_the_readme_passes_all_devices_of_an_a2() -> None:
    text = (DOCKER / "README.md").read_text(encoding="utf-8")
    block = text[text.index("docker run -it --rm --name retool") :].partition("```")[0]
    assert [f"/dev/davinci{i}" in block for i in range(8)] == [True] * 8
    for node in ("davinci_manager", "devmm_svm", "hisi_hdc"):
        assert f"--device /dev/{node}" in block
    for word in ("--shm-size 64g", "nofile=65535", "--network host", "npu-smi", "dcmi"):
        assert word in block


def test_the_compose_file_has_what_two_nodes_need_and_its_run_fits_them() -> None:
    text = (DOCKER / "two-nodes.compose.yaml").read_text(encoding="utf-8")
    worker = yaml.safe_load(text)["services"]["worker"]
    assert "/etc/hccn.conf:/etc/hccn.conf:ro" in worker["volumes"]
    assert "#   export HEAD=" in text  # compose wants it in every command
    run = " ".join(re.findall(r"^# {5}(.*?) ?\\?$", text, re.MULTILINE)).partition("#")[0]
    words = run[run.index("--config") :].split()
    keys = [word for word in words[2:] if not word.startswith("ray.address")]
    plan = make_plan(load_config(ROOT / words[1], keys))
    assert plan.faults == ()
    assert {seat.node for seat in plan.seats} == {0, 1}


def test_ray_is_not_frozen_below_what_the_trainer_needs() -> None:
    """The NPU base has Ray 2.48, so a constraint on it could not be satisfied."""
    trainer = tomllib.loads((ROOT / "apps/trainer/pyproject.toml").read_text(encoding="utf-8"))
    assert any(item.startswith("ray[default]>=2.60") for item in trainer["project"]["dependencies"])
    assert "ray" not in _freeze().ALSO_FROZEN


def test_the_npu_image_takes_our_wheels_as_files() -> None:
    text = (DOCKER / "npu.Dockerfile").read_text(encoding="utf-8")
    assert "/opt/retool/wheels/*.whl" in text
    assert "--find-links" not in text  # a package of that name in the registry could win


def test_environments_models_and_runs_are_no_part_of_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    config = load_config(ROOT / "configs" / "qwen3-4b-npu-a2.yaml")
    folders = {item.folder.partition("/")[0] for item in config.fetch}
    assert folders | {".git", ".venv", ".engines", "runs"} <= set(ignored)


def test_no_image_names_a_registry_host() -> None:
    for file in DOCKER.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("FROM "):
                assert "." not in line.split()[1].partition("/")[0].partition(":")[0], line
