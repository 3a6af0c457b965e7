"""Bring the policy's weights to the engines."""

from ._broadcast import (
    BroadcastSender,
    HttpReceiver,
    SyncReport,
    WeightReceiver,
    WeightSyncError,
)

__all__ = [
    "BroadcastSender",
    "HttpReceiver",
    "SyncReport",
    "WeightReceiver",
    "WeightSyncError",
]
