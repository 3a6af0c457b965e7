"""Token-exact multi-turn tool rollouts."""

from ._dialect import Dialect, make_dialect
from ._engine import (
    ContextOverflowError,
    Engine,
    EngineConfigError,
    EngineError,
    FinishReason,
    Generation,
    Sampling,
)
from ._groups import Group, rollout_groups
from ._limits import Limits
from ._loop import Problem, rollout
from ._metrics import RolloutMetrics, StallMeter
from ._record import trajectory_from_dict, trajectory_to_dict
from ._scripted import Latency, ScriptedEngine
from ._sglang import SglangEngine
from ._tokenizer import Tokenizer
from ._tools import NoTools, Reply, ToolExecutor, ToolReply, ToolSession
from ._trajectory import CallRecord, Status, StopReason, Trajectory, TurnRecord
from ._turn import MalformedCall, ToolCallRequest, Turn
from ._vllm import VllmEngine

__all__ = [
    "CallRecord",
    "ContextOverflowError",
    "Dialect",
    "Engine",
    "EngineConfigError",
    "EngineError",
    "FinishReason",
    "Generation",
    "Group",
    "Latency",
    "Limits",
    "MalformedCall",
    "NoTools",
    "Problem",
    "Reply",
    "RolloutMetrics",
    "Sampling",
    "ScriptedEngine",
    "SglangEngine",
    "StallMeter",
    "Status",
    "StopReason",
    "Tokenizer",
    "ToolCallRequest",
    "ToolExecutor",
    "ToolReply",
    "ToolSession",
    "Trajectory",
    "Turn",
    "TurnRecord",
    "VllmEngine",
    "make_dialect",
    "rollout",
    "rollout_groups",
    "trajectory_from_dict",
    "trajectory_to_dict",
]
