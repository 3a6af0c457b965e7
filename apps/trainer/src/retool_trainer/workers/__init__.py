"""The Ray actors of a run, and the objects through which the driver talks to them."""

from ._calls import WorkerError
from ._cluster import ClusterError, check_cluster, cluster
from ._policy_group import PolicyGroup
from ._rollouts import GradedGroup, GradedSample, RolloutRequest, Rollouts, RolloutStats
from ._workers import Workers

__all__ = [
    "ClusterError",
    "GradedGroup",
    "GradedSample",
    "PolicyGroup",
    "RolloutRequest",
    "RolloutStats",
    "Rollouts",
    "WorkerError",
    "Workers",
    "check_cluster",
    "cluster",
]
