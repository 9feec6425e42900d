"""The host's processor, as documents name it."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Model name of the processor, or its architecture if the platform has no name for it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    return platform.machine()
