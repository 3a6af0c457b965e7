"""Memory and process limits by cgroup, where one can be had."""

from typing import Any


class NoSlots:
    """Stands in where no cgroup can be had: rlimits and the memory watch do the work."""

    kind = "rlimits"

    def take(self) -> None:
        """Nothing to take."""

    def give_back(self, slot: Any) -> None:
        """Nothing to give back."""

    def join_fds(self, slot: Any) -> list[int]:
        """No cgroup to join."""
        return []

    def limit(self, slot: Any, limits: dict[str, Any]) -> None:
        """Rlimits do it."""

    def was_oom(self, slot: Any) -> bool:
        """Never by a cgroup."""
        return False

    def peak_mib(self, slot: Any) -> float:
        """Unknown."""
        return 0.0


Slots = NoSlots
