"""The decode law of a group of served points, and a correction of its residuals between neighbouring points.

The law's factors extrapolate. What it misses (a kernel that changes with the batch, a scheduler's habit) is often alike
at neighbouring points, so their residuals correct a prediction between them: a Gaussian process over the logarithms of
ranks, batch and lengths, small, smooth, and gone a few octaves away. Predictions of served points have both; costs that
a planner uses have the law alone, which is monotone whatever the points say.

Reads published serving measurements: CSV with one row per (GPU, model, precision, layout, load).

Columns needed: system, model_path, precision, isl, osl, tp_size, moe_ep_size, attention_dp_size, batch_size, tpot_ms,
nonmonotone. An empty layout column means 1. Of `versions`, where it is there, vLLM 0.14 and later schedule a step while
the one before it runs (its release notes); earlier ones do not, and points without a version are taken for earlier.
Rows that are flagged `nonmonotone` (a larger batch that is faster, which no schedule does) are left out of what is
returned.

The decode law under a serving benchmark: time per output token while requests arrive and finish.

Published points hold `batch` requests open all the time, each of `isl` prompt and `osl` output tokens. A step then also
carries the prompts of newcomers: `batch * isl / osl` tokens of them on average, in chunks, so that some steps carry a
chunk and others none. Contexts are `isl + osl / 2` on average. Where KV for all requests does not fit, fewer run and
the others wait. With attention data parallelism the batch is each group's own. Only fits of such points need this
module; the simulator issues prompts itself.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlplan.plans.facts.model_names import architecture_of, guess
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.hardware import GPUS, gpu_of
from rlplan.profiles.laws.decode_law import FACTORS, DecodeLaw, Sheet, sheet
from rlplan.profiles.laws.factor_fit import TAIL, Factor, Factors, fit_factors

from .published_csv import csv_rows

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


Array = NDArray[np.float64]

CHUNK_TOKENS = 8192.0  # vLLM's default max_num_batched_tokens for serving on large GPUs
MEMORY_SHARE = 0.9  # vLLM's default gpu_memory_utilization
RESERVE_BYTES = 4e9  # of a GPU: context, captured graphs, activations
NODE = 8  # accelerators
_SOFT = 8.0  # sharpness of the smooth minimum of requests and of those that fit, and of a step's smooth maximum


@dataclass(frozen=True)
class Served:
    """Measured points as columns of one length: layout, load, seconds per output token, and whether (1 or 0) the engine
    schedules a step while the one before it runs."""

    tp: Array
    ep: Array
    dp: Array
    batch: Array
    isl: Array
    osl: Array
    seconds: Array
    ahead: Array

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def ranks(self) -> Array:
        """Accelerators of the engine.

        Files differ in what they call TP beside attention data parallelism: all ranks of the engine, or those of one
        attention group (1). And some name the product of TP and EP, which shows where it is EP squared and more than a
        node: the same times stand there under EP ranks.
        """
        named = np.maximum(self.tp, self.dp)
        return np.where((named > NODE) & (named == self.ep**2), self.ep, named)

    @property
    def groups(self) -> Array:
        """Attention groups of the engine."""
        return np.minimum(self.dp, self.ranks)

    def take(self, keep: NDArray[np.bool_]) -> Served:
        """The points that a mask keeps."""
        return Served(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def running(law: DecodeLaw, points: Served) -> Array:
    """Sequences that run at once on an engine: those asked for, or those whose KV fits."""
    s, ranks = law.sheet, points.ranks
    requested = points.batch * points.dp
    free = ranks * (MEMORY_SHARE * s.memory_bytes - RESERVE_BYTES) - s.weight_bytes
    held = s.kv_bytes_per_token * (points.isl + points.osl / 2) + s.window_bytes
    each = held * law.factor("kv_width") * ranks / law.kv_ranks(ranks, points.groups)
    # Weights that cannot fit mean that the sheet does not know how this was run (more ranks, another format).
    fits = np.where(free > 0, np.maximum(free, 1.0) * law.factor("capacity") / each, np.inf)
    return np.asarray(requested * (1 + (requested / fits) ** _SOFT) ** (-1 / _SOFT))


def seconds_per_token(law: DecodeLaw, points: Served) -> Array:
    """Predicted mean time between output tokens."""
    n = running(law, points)
    tp, ep, dp = points.ranks, points.ep, points.groups
    context = points.isl + points.osl / 2
    newcomers = n * points.isl / points.osl
    chunk = np.minimum(points.isl, CHUNK_TOKENS)
    joins = newcomers / chunk  # chunks a step
    share, together = np.minimum(joins, 1.0), np.maximum(joins, 1.0)
    without = law.linear_s(tp, n, ep, dp) + law.sums_s(tp, n)
    tokens = n + chunk * together
    with_chunk = law.linear_s(tp, tokens, ep, dp) + law.sums_s(tp, tokens) + law.factor("join") * law.sheet.join_s
    attention = law.factor("compute") * law.sheet.pair_s * points.isl / 2 * newcomers / tp
    step = law.step_s(tp, n, n * context, ep, dp) + share * (with_chunk - without) + attention
    device = step * np.where(dp > 1, law.factor("dp"), 1.0)
    host = law.host_s(n / dp)  # each attention group has an engine core of its own
    longer = (device**_SOFT + host**_SOFT) ** (1 / _SOFT)
    return np.asarray(np.where(points.ahead > 0, longer, device + host))


# Bytes of a weight with its scales: nvfp4 has one byte of scale in 16 values, int4 groups two in 128.
WEIGHT_BYTES = {"": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.516}

# Sheets of guessed models and unknown accelerators are off by factors; then the points decide.
GUESSED_SPREAD = 3.0
# Stands for a model of unknown size. Its experts let a fit be of a dense model or of a sparse one.
TYPICAL = "100b-a10b"
PLAIN_KV = Factor("kv_width", 0.0, 0.05)

# What the law misses: its size, how far it reaches in octaves of each coordinate, and what no neighbour shares.
MISSED_SD, OWN_SD = 0.08, 0.04
REACH_OCTAVES = {"ranks": 1.5, "ep": 1.0, "groups": 1.0, "sequences": 2.0, "isl": 1.5, "osl": 1.5}


def sheet_of(group: Group) -> Sheet:
    """What data sheets say of a group; a guess, marked so, where the GPU or the model is not known."""
    gpu, known = gpu_of(group.system), architecture_of(group.model)
    architecture = known or guess(TYPICAL)
    assert architecture is not None, "its name tells its size"
    data_sheet = sheet(architecture, gpu or GPUS["H100"], WEIGHT_BYTES.get(group.precision, 2.0))
    return data_sheet if gpu is not None and known is not None else data_sheet.as_guess()


@dataclass(frozen=True)
class ServedFit:
    """The law of a group, how sure it is, and what its points say beyond it.

    Attributes:
        places: where the points are, in units of reach: [points, coordinates].
        weights: of each point in a correction; `inverse`: of the covariance of what the points say.
    """

    law: DecodeLaw
    factors: Factors
    places: Array
    weights: Array
    inverse: Array

    def predict(self, points: Served) -> Array:
        """Seconds per output token."""
        shared = _shared(_places(points), self.places)
        return np.asarray(seconds_per_token(self.law, points) * np.exp(shared @ self.weights))

    def relative_sd(self, points: Served) -> Array:
        """Relative standard deviation of each prediction: of the law, of what it misses, and of a measurement."""
        shared = _shared(_places(points), self.places)
        missed = np.maximum(MISSED_SD**2 - np.einsum("ij,jk,ik->i", shared, self.inverse, shared), 0.0)
        law = self.factors.relative_sd(lambda logs: seconds_per_token(DecodeLaw(self.law.sheet, logs), points))
        return np.asarray(np.sqrt(law**2 + missed))


def _places(points: Served) -> Array:
    coordinates = {
        "ranks": points.ranks,
        "ep": points.ep,
        "groups": points.groups,
        "sequences": points.batch * points.dp,
        "isl": points.isl,
        "osl": points.osl,
    }
    return np.stack([np.log2(coordinates[name]) / reach for name, reach in REACH_OCTAVES.items()], axis=1)


def _shared(points: Array, other_points: Array) -> Array:
    """Covariance of what the law misses at some places and at others."""
    squares = ((points[:, None, :] - other_points[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(MISSED_SD**2 * np.exp(-squares / 2))


def fit_served(group: Group, points: Served) -> ServedFit:
    """The law of a group's points, and its residuals."""
    data_sheet = sheet_of(group)
    # Engines keep KV in the weights' format unless these are quantised; then it may be either.
    plain = WEIGHT_BYTES.get(group.precision, 2.0) == 2.0
    prior = [PLAIN_KV if plain and factor.name == "kv_width" else factor for factor in FACTORS]
    factors = fit_factors(
        prior,
        lambda logs: seconds_per_token(DecodeLaw(data_sheet, logs), points),
        points.seconds,
        1.0 if data_sheet.exact else GUESSED_SPREAD,
    )
    law = DecodeLaw(data_sheet, factors.logs)
    residuals = np.log(points.seconds / seconds_per_token(law, points))
    # A point that the law calls plainly wrong says little about its neighbours.
    own_variance = OWN_SD**2 * (1 + residuals**2 / (TAIL * OWN_SD**2))
    places = _places(points)
    inverse = np.linalg.inv(_shared(places, places) + np.diag(own_variance)).astype(np.float64)
    return ServedFit(law, factors, places, inverse @ residuals, inverse)
