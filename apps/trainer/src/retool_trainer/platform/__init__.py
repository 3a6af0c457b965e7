"""What differs between CPU, CUDA and Ascend NPU, behind one object; nothing else asks which."""

from ._base import Platform, PlatformError, Probe, Role, Setting, VllmLaunch
from ._registry import get_platform

__all__ = [
    "Platform",
    "PlatformError",
    "Probe",
    "Role",
    "Setting",
    "VllmLaunch",
    "get_platform",
]
