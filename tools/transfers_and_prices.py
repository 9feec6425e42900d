"""Published weight transfers, to which the law of transfers is fitted, and published prices of GPUs.

Prices are CSV with the columns gpu, usd_per_gpu_hour (empty: none was found), provider and source.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.laws.factor_fit import Factors, fit_factors
from rlplan.profiles.laws.sync_law import FACTORS, sync_s
from rlplan.profiles.library import GpuPrice, Prices

from .published_csv import csv_rows, not_a_number

Array = NDArray[np.float64]

FULL = ("nccl full broadcast", "default")  # methods that move every byte from trainers to engines
COLUMNS = ("model", "trainer", "method", "sync_s_min", "sync_s_max")


@dataclass(frozen=True, slots=True)
class SyncRun:
    """One measured weight transfer of a whole model."""

    architecture: Architecture
    weight_bytes: float
    seconds: float
    colocated: bool


def read_syncs(path: str | Path, *, colocated: bool = False) -> list[SyncRun]:
    """Full copies of models in the table, of one of the two ways. Raises InputError (no file, missing columns, no
    number, nothing to fit)."""
    runs: list[SyncRun] = []
    for line, row in csv_rows(path, COLUMNS):
        name = row["model"].split()[0]
        architecture = architecture_of(name)
        of_way = "colocated" in row["trainer"] if colocated else row["method"] in FULL
        if not of_way or architecture is None or architecture.guessed:
            continue
        width = 1.0 if "fp8" in row["model"].lower() else 2.0
        try:
            seconds = (float(row["sync_s_min"]) + float(row["sync_s_max"])) / 2
        except ValueError as error:
            raise not_a_number(error, path, line) from None
        runs.append(SyncRun(architecture, width, seconds, colocated))
    if not runs:
        way = "between ranks that share GPUs" if colocated else "of a known model"
        raise InputError(f"has no full copy {way}", str(path))
    return runs


def fit_sync(runs: Sequence[SyncRun]) -> Factors:
    """Fitted factors of the weight-transfer formula."""
    return fit_factors(FACTORS, lambda logs: _predict(runs, logs), np.array([run.seconds for run in runs]), 1.0)


def _predict(runs: Sequence[SyncRun], logs: Array) -> Array:
    factors = dict(zip((f.name for f in FACTORS), np.exp(logs).tolist(), strict=True))
    return np.array([sync_s(r.architecture, factors, r.weight_bytes, colocated=r.colocated) for r in runs])


def left_out_error(runs: Sequence[SyncRun]) -> float:
    """Median relative error on a model that is left out."""
    errors = []
    for name in sorted({run.architecture.name for run in runs}):
        out = [run for run in runs if run.architecture.name == name]
        rest = [run for run in runs if run.architecture.name != name]
        predicted = _predict(out, fit_sync(rest).logs)
        errors += np.abs(predicted / np.array([run.seconds for run in out]) - 1).tolist()
    return float(np.median(errors))


PRICE_COLUMNS = ("gpu", "usd_per_gpu_hour", "provider", "source")

# No public list has these two; the RollMux paper charges so much for them (arXiv 2512.11306, table 2).
PUBLISHED = {"H20": 1.85, "H800": 5.28}
PUBLISHED_SOURCE = "arXiv 2512.11306 (RollMux), which charges this; no public price list was found"


def read_prices(path: str | Path) -> Prices:
    """Medians by GPU of the offers in a CSV file. Raises InputError (no file, missing column, no number, no offer)."""
    offers: dict[str, list[tuple[float, str, str]]] = {}
    for line, row in csv_rows(path, PRICE_COLUMNS):
        if not row["usd_per_gpu_hour"]:
            continue
        try:
            usd = float(row["usd_per_gpu_hour"])
        except ValueError as error:
            raise not_a_number(error, path, line) from None
        offers.setdefault(row["gpu"], []).append((usd, row["provider"], row["source"]))
    if not offers:
        raise InputError("holds no price", str(path))
    by_gpu = {gpu: _price(listed) for gpu, listed in sorted(offers.items()) if gpu in GPUS}
    for gpu, usd in PUBLISHED.items():
        if gpu not in by_gpu:
            by_gpu[gpu] = _price([(usd, "", PUBLISHED_SOURCE)])
    return Prices(prices=dict(sorted(by_gpu.items())))


def _price(offers: list[tuple[float, str, str]]) -> GpuPrice:
    values = [usd for usd, _, _ in offers]
    providers: dict[str, str] = {}
    for _, provider, source in sorted(offers, key=lambda offer: (offer[1], offer[2])):
        # A catalogue is named once for all of the providers that it lists.
        catalogue = source.split(" ")[0] if source.startswith("skypilot-org/") else source.removeprefix("SECONDARY: ")
        providers[provider] = catalogue
    if list(providers) == [""]:
        source = providers[""]
    else:
        by_catalogue: dict[str, list[str]] = {}
        for provider, catalogue in providers.items():
            by_catalogue.setdefault(catalogue, []).append(provider)
        source = "; ".join(f"{', '.join(names)} by {catalogue}" for catalogue, names in by_catalogue.items())
    return GpuPrice(
        usd_per_gpu_hour=round(statistics.median(values), 4),
        lowest_usd_per_gpu_hour=min(values),
        highest_usd_per_gpu_hour=max(values),
        offers=len(values),
        source=source,
    )
