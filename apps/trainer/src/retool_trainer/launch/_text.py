"""Show a plan to a person: one fact a line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby

from ._memory import MemoryEstimate
from ._plan import Plan
from ._seats import Seat


def render_plan(plan: Plan) -> str:
    """The whole plan as text, faults last, where they are seen."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    size = plan.model
    yield (
        f"plan of {plan.config_name}: platform {plan.platform}, {plan.nodes} node(s) x "
        f"{plan.devices_per_node} device(s)"
    )
    if size is not None:
        yield (
            f"model: {_count(size.num_parameters)} parameters, {size.num_layers} layers, "
            f"{size.num_heads} heads, {size.num_kv_heads} key/value heads ({size.source})"
        )
    for stage in plan.stages:
        yield ""
        yield f"stage {stage.name}: {stage.layout}"
        yield f"  {stage.budget}"
        yield from _seat_lines([seat for seat in plan.seats if seat.stage == stage.name])
    yield ""
    yield "commands"
    for command in plan.ray_commands:
        yield f"  {command}"
    if plan.ray_bundles:
        bundles = ", ".join(
            " ".join(f"{count:g} {name}" for name, count in bundle.items())
            for bundle in plan.ray_bundles
        )
        yield f"  Ray placement group, packed, a bundle for each tensor-parallel group: {bundles}"
    for engine in plan.engines:
        if engine.command:
            yield f"  {engine.name} (started by the run): {shlex.join(engine.command)}"
        else:
            yield f"  {engine.name}: embedded, inside the run"
    for role, settings in plan.environment.items():
        if settings:
            yield ""
            yield f"environment of {role}"
            for setting in settings:
                yield f"  {setting.name}={setting.value}  # {setting.reason}"
    for estimate in plan.memory:
        yield ""
        yield from _estimate_lines(estimate)
    if plan.times:
        yield ""
        yield "wall time of a step (estimated)"
        for time in plan.times:
            parts = " + ".join(f"{name} {value:.0f} s" for name, value in time.parts_s.items())
            yield f"  {time.stage}: {time.total_s:.0f} s = {parts}; {time.basis}"
    for note in plan.notes:
        yield ""
        yield f"note: {note}"
    yield ""
    if plan.faults:
        for fault in plan.faults:
            yield f"FAIL  {fault}"
    else:
        yield "ok    nothing speaks against starting it"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} G" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _seat_lines(seats: list[Seat]) -> Iterator[str]:
    """Neighbouring devices of one kind of process in one line."""
    for (node, kind), members in groupby(seats, key=lambda seat: (seat.node, _kind(seat))):
        devices = [seat.device for seat in members]
        span = f"{devices[0]}-{devices[-1]}" if len(devices) > 1 else f"{devices[0]}"
        yield f"  node {node}, device {span}: {kind}"


def _kind(seat: Seat) -> str:
    words = seat.who.split()
    return "policy ranks" if words[0] == "policy" else " ".join(words[:2])


def _estimate_lines(estimate: MemoryEstimate) -> Iterator[str]:
    limit = "" if estimate.limit_gib is None else f" of {estimate.limit_gib:g} GiB"
    verdict = "" if estimate.fits else "  DOES NOT FIT"
    yield f"{estimate.where} (estimated): {estimate.total_gib:.1f} GiB{limit}{verdict}"
    for item in estimate.items:
        yield f"  {item.gib:7.1f} GiB  {item.name}: {item.formula}"
