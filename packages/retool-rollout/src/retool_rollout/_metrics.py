"""Count how rollouts end, and how long the event loop was not free."""

import asyncio
import time
from collections import Counter, deque
from types import TracebackType
from typing import Any, Self

from ._trajectory import Trajectory

PROBE_EVERY_S = 0.005
MAX_PROBES = 60_000
"""Five minutes of probes; older ones are forgotten."""


class StallMeter:
    """Measures how late a timer of the event loop fires: what blocking costs everybody."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=MAX_PROBES)
        self._busy_s: deque[float] = deque(maxlen=MAX_PROBES)
        self._probes: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._probes.append(asyncio.create_task(self._probe()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        probe = self._probes.pop()
        probe.cancel()
        await asyncio.wait({probe})

    async def _probe(self) -> None:
        while True:
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            await asyncio.sleep(PROBE_EVERY_S)
            self._busy_s.append(time.thread_time() - began_cpu_s)
            self._late_s.append(max(0.0, time.perf_counter() - began_s - PROBE_EVERY_S))

    def percentile_s(self, share: float, *, cpu: bool = False) -> float:
        """The lateness that `share` of the probes stay below; 0.99 gives the p99.

        Args:
            share: Between 0 and 1.
            cpu: Instead, the CPU time that the loop's own thread used between two probes: what it
                does itself, on a machine where others take the processor away.
        """
        ordered = sorted(self._busy_s if cpu else self._late_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class RolloutMetrics:
    """What `rollout_groups` did, in numbers; read it whenever you like."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.stop_reasons: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.retries = 0
        self.sampled_tokens = self.turns = self.calls = self.calls_ok = 0
        self.generate_s = self.tool_s = 0.0
        self.stalls = StallMeter()

    def add(self, trajectory: Trajectory) -> None:
        """Count a finished trajectory."""
        self.statuses[trajectory.status.value] += 1
        self.stop_reasons[trajectory.stop_reason.value] += 1
        self.sampled_tokens += trajectory.num_sampled
        self.turns += len(trajectory.turns)
        for turn in trajectory.turns:
            self.generate_s += turn.generate_s
            self.tool_s += turn.tool_s
            self.calls += len(turn.calls)
            for call in turn.calls:
                self.outcomes[call.outcome] += 1
                self.calls_ok += call.ok

    def summary(self) -> dict[str, Any]:
        """Flat numbers for a log, under stable keys."""
        total = sum(self.statuses.values())
        numbers: dict[str, Any] = {
            "trajectories": total,
            "retries": self.retries,
            "sampled_tokens": self.sampled_tokens,
            "turns/mean": self.turns / total if total else 0.0,
            "tool/calls": self.calls,
            "tool/ok": self.calls_ok / self.calls if self.calls else 0.0,
            "time/generate_s": self.generate_s,
            "time/tool_s": self.tool_s,
            "stall/p50_ms": 1000 * self.stalls.percentile_s(0.5),
            "stall/p99_ms": 1000 * self.stalls.percentile_s(0.99),
            "stall/max_ms": 1000 * self.stalls.percentile_s(1.0),
        }
        numbers |= {f"status/{name}": count for name, count in self.statuses.items()}
        numbers |= {f"stop/{name}": count for name, count in self.stop_reasons.items()}
        numbers |= {f"outcome/{name}": count for name, count in self.outcomes.items()}
        return numbers
