"""Reads published serving measurements: CSV with one row per (GPU, model, precision, layout, load).

Columns needed: system, model_path, precision, isl, osl, tp_size, moe_ep_size, attention_dp_size, batch_size, tpot_ms,
nonmonotone. An empty layout column means 1. Of `versions`, where it is there, vLLM 0.14 and later schedule a step while
the one before it runs (its release notes); earlier ones do not, and points without a version are taken for earlier.
Rows that are flagged `nonmonotone` (a larger batch that is faster, which no schedule does) are left out of what is
returned.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...plans.yaml.errors import InputError
from ..laws.served_decode import Served
from .csv_rows import csv_rows

COLUMNS = (
    "system", "model_path", "precision", "isl", "osl", "tp_size", "moe_ep_size", "attention_dp_size", "batch_size",
    "tpot_ms", "nonmonotone",
)  # fmt: skip


class Group(NamedTuple):
    """Points that one law describes."""

    system: str
    model: str
    precision: str

    def __str__(self) -> str:
        return f"{self.system}/{self.model}/{self.precision or 'unnamed precision'}"


def read_served(path: str | Path) -> dict[Group, Served]:
    """The points by group, as the file has them. Raises InputError: no file, a missing column, not a number."""
    rows: dict[Group, list[list[float]]] = {}
    for line, row in csv_rows(path, COLUMNS):
        if row["nonmonotone"].strip().lower() in ("true", "1"):
            continue
        group = Group(row["system"], row["model_path"], row["precision"].strip().lower())
        rows.setdefault(group, []).append(_numbers(row, str(path), line))
    if not rows:
        raise InputError("has no rows to fit", str(path))
    return {group: Served(*np.array(values).T) for group, values in rows.items()}


def _numbers(row: dict[str, str], path: str, line: int) -> list[float]:
    numbers = []
    for name in ("tp_size", "moe_ep_size", "attention_dp_size", "batch_size", "isl", "osl", "tpot_ms"):
        text = (row[name] or "").strip()
        layout = name in ("tp_size", "moe_ep_size", "attention_dp_size")
        try:
            # 0 and nothing both stand for a layout without that kind of parallelism.
            value = (float(text or 1) or 1.0) if layout else float(text)
        except ValueError:
            raise InputError(f"{name} is {text!r}; write a number", path, line) from None
        if not math.isfinite(value) or value <= 0:
            raise InputError(f"{name} is {text}; write a positive number", path, line)
        numbers.append(value / 1e3 if name == "tpot_ms" else value)
    numbers.append(float(_schedules_ahead(row.get("versions") or "")))
    return numbers


def _schedules_ahead(versions: str) -> bool:
    """Whether vLLM of such a version, or of the first of several (0.17.0|0.19.0), schedules ahead."""
    match = re.match(r"(\d+)\.(\d+)", versions)
    return versions.startswith("nightly") if match is None else (int(match[1]), int(match[2])) >= (0, 14)
