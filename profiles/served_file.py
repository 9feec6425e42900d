"""Reads published serving measurements: CSV with one row per (GPU, model, precision, layout, load).

Columns needed: system, model_path, precision, isl, osl, tp_size, moe_ep_size, attention_dp_size, batch_size, tpot_ms,
nonmonotone. An empty layout column means 1. Rows that are flagged `nonmonotone` (a larger batch that is faster, which
no schedule does) are left out of what is returned.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..plans.errors import InputError
from .architecture import architecture_of, typical
from .decode_model import FACTORS, DecodeLaw, Sheet, sheet
from .factors import Factor, Factors, fit_factors
from .hardware import GPUS, gpu_of
from .served import Served, seconds_per_token

Array = NDArray[np.float64]

# Bytes of a weight with its scales: nvfp4 has one byte of scale in 16 values, int4 groups two in 128.
WEIGHT_BYTES = {"": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.516}

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
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"has no column {', '.join(missing)}; needed are {', '.join(COLUMNS)}", str(path))
            for line, row in enumerate(reader, 2):
                if row["nonmonotone"].strip().lower() in ("true", "1"):
                    continue
                group = Group(row["system"], row["model_path"], row["precision"].strip().lower())
                rows.setdefault(group, []).append(_numbers(row, str(path), line))
    except FileNotFoundError:
        raise InputError("no such file", str(path)) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read as CSV: {error}", str(path)) from None
    if not rows:
        raise InputError("has no rows to fit", str(path))
    return {group: Served(*np.array(values).T) for group, values in rows.items()}


def _numbers(row: dict[str, str], path: str, line: int) -> list[float]:
    found = []
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
        found.append(value / 1e3 if name == "tpot_ms" else value)
    return found


def sheet_of(group: Group) -> Sheet:
    """What data sheets say of a group; a guess, marked so, where the GPU or the model is not known."""
    gpu, architecture = gpu_of(group.system), architecture_of(group.model)
    found = sheet(architecture or typical(), gpu or GPUS["H100"], WEIGHT_BYTES.get(group.precision, 2.0))
    return found if gpu is not None and architecture is not None else found.as_guess()


# Sheets of guessed models and unknown accelerators are off by factors; then the points decide.
GUESSED_SPREAD = 3.0
PLAIN_KV = Factor("kv_width", 0.0, 0.05)


@dataclass(frozen=True)
class ServedFit:
    """The law of a group, and how sure it is."""

    law: DecodeLaw
    factors: Factors

    def predict(self, points: Served) -> Array:
        """Seconds per output token."""
        return seconds_per_token(self.law, points)

    def relative_sd(self, points: Served) -> Array:
        """Relative standard deviation of each prediction."""
        return self.factors.relative_sd(lambda logs: seconds_per_token(DecodeLaw(self.law.sheet, logs), points))


def fit_served(group: Group, points: Served) -> ServedFit:
    """The law of a group's points."""
    found = sheet_of(group)
    # Engines keep KV in the weights' format unless these are quantised; then it may be either.
    plain = WEIGHT_BYTES.get(group.precision, 2.0) == 2.0
    prior = [PLAIN_KV if plain and factor.name == "kv_width" else factor for factor in FACTORS]
    factors = fit_factors(
        prior,
        lambda logs: seconds_per_token(DecodeLaw(found, logs), points),
        points.seconds,
        1.0 if found.exact else GUESSED_SPREAD,
    )
    return ServedFit(DecodeLaw(found, factors.logs), factors)
