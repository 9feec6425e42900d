"""USD per GPU-hour on demand: medians of public price lists, which ship as prices.yaml.

`build.py --prices FILE` writes them. The file is CSV with the columns gpu, usd_per_gpu_hour (empty: none was found),
provider and source. Prices are of a day and of somebody's contract; `rlplan init` writes them into cluster.yaml with
what they rest on, to be replaced by one's own.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...plans.schema.base import Count, Positive, Strict
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import load
from ..hardware import GPUS
from ..imports.csv_rows import csv_rows, not_a_number

PATH = Path(__file__).parent / "prices.yaml"
COLUMNS = ("gpu", "usd_per_gpu_hour", "provider", "source")

# No public list has these two; the RollMux paper charges so much for them (arXiv 2512.11306, table 2).
PUBLISHED = {"H20": 1.85, "H800": 5.28}
PUBLISHED_SOURCE = "arXiv 2512.11306 (RollMux), which charges this; no public price list was found"


class GpuPrice(Strict):
    """The price of one GPU for one hour, on demand."""

    usd_per_gpu_hour: Positive
    """Median of the offers in USD."""

    lowest_usd_per_gpu_hour: Positive
    """The cheapest of them."""

    highest_usd_per_gpu_hour: Positive
    """The dearest of them."""

    offers: Count
    """How many there are."""

    source: Annotated[str, Field(min_length=1)]
    """Whose offers, and where they were read."""

    @property
    def basis(self) -> str:
        """Text on the offers that the price is the median of."""
        if self.offers == 1:
            return self.source
        span = f"{self.lowest_usd_per_gpu_hour:g} to {self.highest_usd_per_gpu_hour:g}"
        return f"median of {self.offers} offers from {span}: {self.source}"


class Prices(Strict):
    """The document prices.yaml."""

    prices: dict[str, GpuPrice]
    """By the GPU's short name."""


def gpu_price(gpu: str) -> GpuPrice | None:
    """The price of a GPU by its short name (`H100`); None where none ships."""
    return load(PATH, Prices).prices.get(gpu)


def read_prices(path: str | Path) -> Prices:
    """Medians by GPU of the offers in a CSV file. Raises InputError (no file, missing column, no number, no offer)."""
    offers: dict[str, list[tuple[float, str, str]]] = {}
    for line, row in csv_rows(path, COLUMNS):
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
