"""Choose a replica: where the session already is, else where least is going on."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

REST_S = 5.0
"""How long a replica that failed is passed over; then it is tried again, and may rejoin."""
MAX_SESSIONS = 100_000
"""Affinity that is remembered, for callers that never release; the oldest is forgotten first."""


@dataclass(slots=True)
class Replica:
    """One server."""

    url: str
    in_flight: int = 0
    rests_until_s: float = 0.0


class Replicas:
    """The servers of an engine."""

    def __init__(self, urls: Sequence[str]) -> None:
        cleaned = [url.rstrip("/") for url in urls]
        if not cleaned:
            raise ValueError("an engine needs at least one URL, such as http://127.0.0.1:8000")
        for url in cleaned:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"an engine's URL begins with http:// or https://, got {url!r}")
        if len(set(cleaned)) != len(cleaned):
            raise ValueError(f"a replica is listed twice: {cleaned}")
        self._replicas = [Replica(url) for url in cleaned]
        self._home: dict[str, Replica] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """Where they are."""
        return tuple(replica.url for replica in self._replicas)

    @contextmanager
    def use(self, session_id: str) -> Generator[Replica]:
        """Take a replica for one request of a session."""
        replica = self._choose(session_id)
        replica.in_flight += 1
        try:
            yield replica
        finally:
            replica.in_flight -= 1

    def failed(self, replica: Replica, session_id: str) -> None:
        """Pass over this replica for a while; the session moves."""
        replica.rests_until_s = time.monotonic() + REST_S
        self._home.pop(session_id, None)

    def worked(self, replica: Replica) -> None:
        """It is well again."""
        replica.rests_until_s = 0.0

    def forget(self, session_id: str) -> None:
        """The session is over."""
        self._home.pop(session_id, None)

    def _choose(self, session_id: str) -> Replica:
        now_s = time.monotonic()
        home = self._home.get(session_id)
        if home is not None and home.rests_until_s <= now_s:
            return home
        # When all of them rest, the one that has rested longest is tried first.
        best = min(
            self._replicas,
            key=lambda replica: (max(0.0, replica.rests_until_s - now_s), replica.in_flight),
        )
        if len(self._home) >= MAX_SESSIONS:
            del self._home[next(iter(self._home))]
        self._home[session_id] = best
        return best
