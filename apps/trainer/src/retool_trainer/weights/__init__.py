"""Bring the policy's weights to the engines."""

from ._broadcast import (
    BroadcastSender,
    HttpReceiver,
    SyncReport,
    WeightReceiver,
    WeightSyncError,
)
from ._disk import DiskSync

__all__ = [
    "BroadcastSender",
    "DiskSync",
    "HttpReceiver",
    "SyncReport",
    "WeightReceiver",
    "WeightSyncError",
]
