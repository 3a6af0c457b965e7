"""All actors of a run, started and ended together."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from retool_rollout import Status
from retool_trainer.config import RunConfig
from retool_trainer.launch import place

from ._calls import WorkerError
from ._engine_servers import EngineServers
from ._policy_group import PolicyGroup
from ._rollouts import GradedGroup, RolloutRequest, Rollouts, RolloutStats


class Workers:
    """The policy, the engines and the rollouts."""

    def __init__(self, config: RunConfig, model: Path, log_folder: Path) -> None:
        """Start everything on the weights of a Hugging Face folder.

        The policy loads in the background while the engines start.
        """
        self._config, self._model = config, model
        with ExitStack() as stack:
            placement = stack.enter_context(place(config))
            self.policy = PolicyGroup(config, model, placement.policy)
            stack.callback(self.policy.close)
            self.servers = EngineServers(config, model, log_folder, placement.engines)
            stack.callback(self.servers.close)
            self.rollouts = Rollouts(config, model, self.servers.urls)
            stack.callback(self.rollouts.close)
            self._stack = stack.pop_all()
        self._broadcasts = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def collect(self, request: RolloutRequest) -> tuple[list[GradedGroup], RolloutStats]:
        """Solve a batch of problems.

        Raises:
            WorkerError: A server died and took trajectories with it, or most were lost otherwise.
                Going on would lose them; the run goes back to its checkpoint, and they are drawn
                again.
        """
        groups, stats = self.rollouts.collect(request)
        trajectories = [sample.trajectory for group in groups for sample in group.samples]
        aborted = [one for one in trajectories if one.status is Status.ABORTED]
        if aborted:
            self.servers.check()
        # An engine or a sandbox that is down, not a stray failure. What is left is no fair sample:
        # without a sandbox, those that call no tool.
        if 2 * len(aborted) > len(trajectories):
            raise WorkerError(
                f"{len(aborted)} of {len(trajectories)} trajectories were aborted: "
                f"{aborted[0].error}"
            )
        return groups, stats

    def load_engines(self, folder: Path, weight_version: int) -> None:
        """Give every engine the weights of a folder; a server that had died starts on them."""
        self._model = folder
        self.servers.ensure(folder)
        # The cache comes last: until the old weights' staging is gone there may be no room for it.
        if self._config.engine.colocated:
            self.servers.wake("weights")
        self.rollouts.load(folder, weight_version)
        if self._config.engine.colocated:
            self.servers.wake("kv_cache")

    def rest_engines(self) -> None:
        """The policy is about to train: engines on its devices sleep until `load_engines`."""
        if self._config.engine.colocated:
            self.servers.sleep()

    def broadcast(self, weight_version: int) -> None:
        """Send the policy's weights to every server over the collective backend."""
        restarted = self.servers.ensure(self._model)
        if restarted or not self._broadcasts:
            # A group with a member that died is of no use; all join a new one.
            self.policy.connect_engines(self.servers.urls)
            self._broadcasts = True
        self.rollouts.pause()
        self.policy.broadcast(weight_version)
        self.rollouts.resume(weight_version)
