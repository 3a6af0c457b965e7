"""Groups 5 and 9: package versions against one row, and the model's and data's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retool_trainer.launch._versions import PACKAGES

from ._finding import Case, Finding, fail, judge, not_applicable, ok


def check_versions(case: Case) -> Iterator[Finding]:
    """Every package of the platform's row, and packages that must not be there."""
    machine, name = case.machine, case.config.platform
    # The trainer starts vLLM with the interpreter that the config names: its packages are there.
    elsewhere = {"vllm"} if case.config.engine.python is not None else set[str]()
    for package, wanted in PACKAGES[name].items():
        if package in elsewhere:
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
    if name != "npu":
        return
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


def check_model(case: Case) -> Iterator[Finding]:
    """Shards, tokenizer, sizes against the layout, rope theta; then the data files."""
    config = case.config
    if config.model.path is None:
        yield not_applicable(9, "model", "made from random weights")
    else:
        yield from _check_folder(case, Path(config.model.path))
    for name, file in config.data.sets.items():
        path = case.machine.root / file.lstrip("/") if Path(file).is_absolute() else Path(file)
        yield judge(
            9,
            f"data {name}",
            path.is_file() and path.stat().st_size > 0,
            f"{file}: {path.stat().st_size} bytes" if path.is_file() else f"{file} is not there",
            "run `fetch`, or correct data.sets",
        )


def _check_folder(case: Case, model: Path) -> Iterator[Finding]:
    folder = case.machine.root / str(model).lstrip("/") if model.is_absolute() else model
    try:
        fields: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield fail(9, "model", f"{model}/config.json: {why}", "run `fetch`, or set model.path")
        return
    yield _shards(folder, model)
    tokenizer = folder / "tokenizer.json"
    yield judge(
        9,
        "tokenizer",
        tokenizer.is_file(),
        "tokenizer.json" if tokenizer.is_file() else "tokenizer.json is not there",
        "copy it from the base model's repository",
    )
    rope = fields.get("rope_theta") or (fields.get("rope_parameters") or {}).get("rope_theta")
    yield judge(
        9,
        "rope theta",
        rope is not None,
        "absent" if rope is None else f"{rope:g}, which the policy and the engine both read",
        "Qwen3-4B has 1e6, its 2507 releases 5e6: take config.json from where the weights are from",
    )
    faults = [f for f in case.plan.faults if "does not divide the model" in f]
    for fault in faults:
        what, _, cure = fault.partition("; ")
        yield fail(9, "layout", what, cure)
    if not faults:
        layout = f"policy TP{case.config.policy.tensor_parallel}"
        yield ok(9, "layout", f"{layout}, engine TP{case.config.engine.tensor_parallel} divide it")


def _shards(folder: Path, model: Path) -> Finding:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        single = folder / "model.safetensors"
        return judge(
            9,
            "weights",
            single.is_file(),
            "model.safetensors" if single.is_file() else f"no safetensors in {model}",
            "run `fetch`",
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        return fail(9, "weights", f"{index.name} cannot be read: {error!r}", "run `fetch` again")
    missing = [name for name in names if not (folder / name).is_file()]
    return judge(
        9,
        "weights",
        not missing,
        f"missing {', '.join(missing)} of {len(names)} shards"
        if missing
        else f"all {len(names)} shards of the index",
        "run `fetch` again; it continues where it stopped",
    )
