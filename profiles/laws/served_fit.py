"""The decode law of a group of served points, and a correction of its residuals between neighbouring points.

The law's factors extrapolate. What it misses (a kernel that changes with the batch, a scheduler's habit) is often alike
at neighbouring points, so their residuals correct a prediction between them: a Gaussian process over the logarithms of
ranks, batch and lengths, small, smooth, and gone a few octaves away. Predictions of served points have both; costs that
a planner uses have the law alone, which is monotone whatever the points say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...plans.facts.model_names import architecture_of, guess
from ..hardware import GPUS, gpu_of
from ..imports.served_file import Group
from .decode_law import FACTORS, DecodeLaw, Sheet, sheet
from .factor_fit import TAIL, Factor, Factors, fit_factors
from .served_decode import Served, seconds_per_token

Array = NDArray[np.float64]

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
