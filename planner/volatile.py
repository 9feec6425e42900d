"""The block of a plan that differs from solve to solve."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from .. import __version__
from ..plans.schema.sections.origin import Volatile


def volatile(began: float) -> Volatile:
    """Facts about a solve that began at `began` (of `time.perf_counter`) and ends now."""
    return Volatile(
        solved_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        solve_s=time.perf_counter() - began,
        rlplan=__version__,
    )
