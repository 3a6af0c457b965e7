"""Find a platform by the name that the configuration gives it."""

from __future__ import annotations

from ._base import Platform, PlatformError
from ._cpu import CpuPlatform
from ._cuda import CudaPlatform
from ._npu import NpuPlatform

_PLATFORMS = {cls.name: cls for cls in (CpuPlatform, CudaPlatform, NpuPlatform)}


def get_platform(name: str) -> Platform:
    """The platform `cpu`, `cuda` or `npu`; nothing of the vendor's stack is imported.

    Raises:
        PlatformError: An unknown name.
    """
    cls = _PLATFORMS.get(name)
    if cls is None:
        raise PlatformError(f"unknown platform {name!r}; known are {', '.join(_PLATFORMS)}")
    return cls()
