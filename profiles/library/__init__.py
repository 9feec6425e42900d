"""Profiles that ship: GPUs and models by data-sheet physics and public measurements, not of anybody's cluster; and what
is made of them for a job: scaled to its model (scaled_profile.py), judged whether they are of it (fitness.py), written
as documents to begin with (skeleton.py).

One file a (GPU, model), `h100.qwen2.5-7b.yaml`; tools/build_library.py writes them. They say what a value rests on and
how far it may be off; `rlplan profile` on your own machines replaces them. `prices.yaml` holds USD per GPU-hour on
demand, medians of public price lists, of a day and of somebody's contract: `rlplan init` writes them into cluster.yaml
with what they rest on, to be replaced by one's own.
"""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...plans.facts.model_names import architecture_of
from ...plans.facts.public_models import Architecture
from ...plans.schema.base import Count, Positive, Strict
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import load
from ..profile_schema import Profile

FOLDER = Path(__file__).parent
PRICES_NAME = "prices.yaml"
GPU_NAMES = ("A100", "B200", "H100", "H20", "H200", "H800")
MODEL_NAMES = (
    "Llama-3.1-70B", "Llama-3.1-8B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-72B", "Qwen2.5-7B", "Qwen3-30B-A3B",
)  # fmt: skip
SAME_SIZE = 0.15
"""Share by which the parameters of two models may differ for them to count as of one size."""
FARTHEST = 16.0
"""Factor between the parameters of a model and those of the shipped one that its costs may be scaled from: Qwen2.5-7B
serves 0.5B, Llama-3.1-70B 405B. Beyond it the error that scaling adds (scaled_profile.py) is that of a guess."""


def library_path(gpu: str, model: str) -> Path:
    """Where the profile of a GPU and a model is, if there is one."""
    return FOLDER / f"{gpu.lower()}.{model.lower()}.yaml"


def library_names() -> list[tuple[str, str]]:
    """(GPU, model) of the profiles that ship."""
    return [(gpu, model) for gpu in GPU_NAMES for model in MODEL_NAMES if library_path(gpu, model).is_file()]


def shipped_model(model: str | Architecture | None) -> str | None:
    """The library's name of a model that is called `Qwen/Qwen2.5-32B-Instruct` or `qwen2.5-32b`, or of this shape.

    Models of one shape cost the same, so Llama-3.3-70B is served by Llama-3.1-70B. None where no profile of its shape
    ships, or where its shape is not known.
    """
    shape = architecture_of(model) if isinstance(model, str) else model
    if shape is None or shape.guessed:
        return None
    return next((name for name in MODEL_NAMES if shape_of_shipped(name).is_shaped_as(shape)), None)


def shape_of_shipped(name: str) -> Architecture:
    """The shape of a model of which a profile ships, by the library's name."""
    shape = architecture_of(name)
    assert shape is not None, name
    return shape


def nearest_shipped(shape: Architecture, gpu: str | None = None, farthest: float = FARTHEST) -> str | None:
    """The library's name of the model whose costs serve this one: of its shape, else of its kind (dense, or a mixture
    of experts) and nearest in parameters, which may differ by the factor `farthest`. `gpu`: its short name, None for
    any. None where all are farther away."""
    names = {name for on, name in library_names() if gpu in (None, on)}
    own = shipped_model(shape)
    if own in names:
        return own
    away = {
        name: abs(math.log(other.parameters / shape.parameters))
        for name in sorted(names)
        if bool((other := shape_of_shipped(name)).experts) == bool(shape.experts)
    }
    nearest = min(away, key=lambda name: away[name], default=None)
    return nearest if nearest is not None and away[nearest] <= math.log(farthest) else None


def size_distance(one: Architecture, other: Architecture) -> float:
    """How far two models are apart in size: the logarithm of the ratio of their parameters, 0 where they count as of
    one size."""
    ratio = one.parameters / other.parameters
    return 0.0 if abs(ratio - 1) <= SAME_SIZE else abs(math.log(ratio))


def library_profile(gpu: str, model: str) -> Profile:
    """The profile of a GPU (its short name) and a model (any usual name).

    Raises InputError when none ships: with the nearest names, and with all that ship for that GPU.
    """
    name = shipped_model(model)
    if name is not None and library_path(gpu, name).is_file():
        return load(library_path(gpu, name), Profile)
    models = [m for g, m in library_names() if g == gpu]
    if not models:
        raise InputError(f"no profile of {gpu} ships; there are profiles of {', '.join(GPU_NAMES)}")
    shape = architecture_of(model)
    if shape is None or shape.guessed:
        lower = {each.lower(): each for each in models}
        near = difflib.get_close_matches(model.lower().rstrip("/").split("/")[-1], lower, 2, 0.75)
        hint = f"did you mean {' or '.join(lower[each] for each in near)}? " if near else ""
    else:
        nearest = nearest_shipped(shape, gpu)
        hint = "" if nearest is None else f"take {nearest}, the nearest of its kind, whose costs are scaled to it; "
    raise InputError(f"no profile of {model} on {gpu} ships; {hint}there are profiles on {gpu} of {', '.join(models)}")


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
    return load(FOLDER / PRICES_NAME, Prices).prices.get(gpu)
