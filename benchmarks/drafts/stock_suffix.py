"""The package that vLLM's stock `suffix` method needs, in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENT = "arctic-inference==0.1.1"
"""The version that vLLM 0.32 asks for. Built from source, for which pip fetches torch once more: some minutes."""

BUILD_S = 1500.0


def install(folder: Path) -> str | None:
    """Install it below `folder`, apart from our environment, for its plug-in changes vLLM where it is found; returns
    why that was impossible."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{REQUIREMENT} was not built within {BUILD_S:.0f} s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
