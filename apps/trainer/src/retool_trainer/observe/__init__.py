"""What a run tells about itself: metrics, console, trackers, trajectories, statistics, report."""

from ._console import Console, duration, step_line
from ._keys import METRIC_KEYS, metric_pattern, metrics_table
from ._metrics import Metrics, read_metrics
from ._observer import Observer
from ._records import Call, SampleRecord, Segment, make_record, split_segments, token_pieces
from ._report import ReportError, write_report
from ._sample_metrics import policy_metrics, sample_metrics
from ._statistics import (
    Change,
    Estimate,
    avg_at_n,
    clustered_wilson,
    paired_change,
    pass_at_k,
)
from ._trackers import Tracker, TrackerUnavailableError, make_trackers
from ._trajectories import (
    forget_trajectories_after,
    read_trajectories,
    read_verdicts,
    trajectories_path,
    write_trajectories,
)

__all__ = [
    "METRIC_KEYS",
    "Call",
    "Change",
    "Console",
    "Estimate",
    "Metrics",
    "Observer",
    "ReportError",
    "SampleRecord",
    "Segment",
    "Tracker",
    "TrackerUnavailableError",
    "avg_at_n",
    "clustered_wilson",
    "duration",
    "forget_trajectories_after",
    "make_record",
    "make_trackers",
    "metric_pattern",
    "metrics_table",
    "paired_change",
    "pass_at_k",
    "policy_metrics",
    "read_metrics",
    "read_trajectories",
    "read_verdicts",
    "sample_metrics",
    "split_segments",
    "step_line",
    "token_pieces",
    "trajectories_path",
    "write_report",
    "write_trajectories",
]
