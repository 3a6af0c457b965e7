"""Groups 5 and 9: package versions against one row, and the model's and data's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retool_trainer.launch._versions import NPU_TRAINING, PACKAGES

from ._finding import Case, Finding, fail, judge, not_applicable, ok

_ENGINE_PACKAGES = {"vllm", "vllm-ascend", "triton-ascend"}


def check_versions(case: Case) -> Iterator[Finding]:
    """Every package of the platform's row, and packages that must not be there."""
    machine, name = case.machine, case.config.platform
    # The trainer starts vLLM with the interpreter that the config names: its packages are there.
    elsewhere = case.config.engine.python is not None
    for package, wanted in PACKAGES[name].items():
        if elsewhere and package in _ENGINE_PACKAGES:
            yield not_applicable(5, package, "in the environment of engine.python")
            continue
        version = machine.package_version(package)
        # A local part (+cpu, +cu130) names the build, not the release.
        same = version is not None and version.partition("+")[0] == wanted
        yield judge(
            5,
            package,
            same,
            version or "not installed",
            f"{wanted} is the tested one: `uv sync --extra {name}`, or docker/{name}.Dockerfile"
            if name != "cpu"
            else f"{wanted} is the tested one: `uv sync`",
        )
    if case.config.engine.kind == "vllm":
        yield _engine(case)
    if name != "npu":
        return
    for package, wanted in NPU_TRAINING.items():
        version = machine.package_version(package)
        yield judge(
            5,
            package,
            version is not None and wanted in (None, version),
            version or "not installed",
            "docker/npu.Dockerfile installs it, at the release or commit that goes with Megatron "
            f"{NPU_TRAINING['megatron-core']}",
        )
    te = machine.package_version("transformer-engine")
    yield judge(
        5,
        "transformer-engine",
        te is None,
        f"{te} is installed" if te else "not installed, as it has to be",
        "NVIDIA's package hides TENPU's module of the same name; uninstall it",
    )
    triton = machine.package_version("triton")
    yield judge(
        5,
        "triton",
        triton is None,
        f"{triton} beside triton-ascend" if triton else "only triton-ascend",
        "they share one folder: `pip uninstall triton triton-ascend`, then install triton-ascend",
    )
    reply = machine.run(
        ["python", "-c", "import torch, torch_npu; print(torch.npu.device_count())"], 120.0
    )
    last = reply.text.strip().splitlines()[-1] if reply and reply.text.strip() else "no answer"
    yield judge(
        5,
        "torch.npu",
        last.isdigit() and int(last) >= case.num_devices,
        f"{last} devices, {case.num_devices} needed" if last.isdigit() else last[-160:],
        "groups 2 to 4 first; then ASCEND_RT_VISIBLE_DEVICES",
    )


def _engine(case: Case) -> Finding:
    """Can the interpreter that is to serve find vLLM? It is looked for, not imported."""
    python = case.config.engine.python or "python"
    program = "import importlib.util as u; print('found' if u.find_spec('vllm') else 'absent')"
    reply = case.machine.run([python, "-c", program])
    said = "no such program" if reply is None else reply.text.strip().rpartition("\n")[2][:160]
    return judge(
        5,
        "engine.python",
        said == "found",
        f"vLLM in {case.config.engine.python or 'this interpreter'}: {said}",
        "correct engine.python (scripts/make_vllm_cpu.sh makes one for a CPU)",
    )


def check_model(case: Case) -> Iterator[Finding]:
    """Shards, tokenizer, sizes against the layout, rope theta; then the data files."""
    config = case.config
    if config.model.path is None:
        yield not_applicable(9, "model", "made from random weights")
    else:
        yield from _check_folder(case, Path(config.model.path))
    if config.rl is not None and config.rl.start_from is not None:
        start = Path(config.rl.start_from)
        yield _shards(_below(case, start), start, "rl.start_from")
    for name, file in config.data.sets.items():
        path = _below(case, Path(file))
        yield judge(
            9,
            f"data {name}",
            path.is_file() and path.stat().st_size > 0,
            f"{file}: {path.stat().st_size} bytes" if path.is_file() else f"{file} is not there",
            "run `fetch`, or correct data.sets",
        )


def _below(case: Case, path: Path) -> Path:
    return case.machine.root / str(path).lstrip("/") if path.is_absolute() else path


def _check_folder(case: Case, model: Path) -> Iterator[Finding]:
    folder = _below(case, model)
    try:
        fields: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError("not the configuration of a model")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield fail(9, "model", f"{model}/config.json: {why}", "run `fetch`, or set model.path")
        return
    yield _shards(folder, model, "weights")
    tokenizer = folder / "tokenizer.json"
    yield judge(
        9,
        "tokenizer",
        tokenizer.is_file(),
        "tokenizer.json" if tokenizer.is_file() else "tokenizer.json is not there",
        "copy it from the base model's repository",
    )
    parameters = fields.get("rope_parameters")
    inner = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    rope = fields.get("rope_theta") or inner
    good = isinstance(rope, int | float)
    yield judge(
        9,
        "rope theta",
        good,
        f"{rope:g}, which the policy and the engine both read" if good else f"{rope or 'absent'}",
        "Qwen3-4B has 1e6, its 2507 releases 5e6: take config.json from where the weights are from",
    )
    faults = [f for f in case.plan.faults if "does not divide the model" in f]
    for fault in faults:
        what, _, cure = fault.partition("; ")
        yield fail(9, "layout", what, cure)
    if not faults:
        layout = f"policy TP{case.config.policy.tensor_parallel}"
        yield ok(9, "layout", f"{layout}, engine TP{case.config.engine.tensor_parallel} divide it")


def _shards(folder: Path, model: Path, subject: str) -> Finding:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        single = folder / "model.safetensors"
        return judge(
            9,
            subject,
            single.is_file(),
            "model.safetensors" if single.is_file() else f"no safetensors in {model}",
            "run `fetch`",
        )
    try:
        tree = json.loads(index.read_text(encoding="utf-8"))
        names = sorted({str(name) for name in tree["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return fail(9, subject, f"{index.name} cannot be read: {error!r}", "run `fetch` again")
    missing = [name for name in names if not (folder / name).is_file()]
    return judge(
        9,
        subject,
        not missing,
        f"missing {', '.join(missing)} of {len(names)} shards"
        if missing
        else f"all {len(names)} shards of the index",
        "run `fetch` again; it continues where it stopped",
    )
