"""A length trace drawn from what papers publish or a user states, a table of quantiles and one number for the
dependence in a prompt; and the traces that other jobs of its kind might have.

The dependence is a one-factor Gaussian copula (calibrated on RollPacker, arXiv 2509.21009): sample j of prompt p
has the score sqrt(rho) z_p + sqrt(1 - rho) e_pj with independent standard normals, and the score's rank is mapped onto
the marginal. z_p stands on a grid of normal quantiles and ranks are taken over the whole trace, so the marginal of the
trace is the published one to a rank, whatever the seed; the seed decides only which prompt has which length. Its rho is
found by bisection, such that the trace has the table's ICC of log(1 + tokens) to `ICC_TOLERANCE`. Everything is drawn
with one fixed seed: a table gives one trace, the same everywhere, so a plan names the table and not the trace.

Between two published points the survival is a power of the length (a line in log-log): tails are given by few points,
and a straight line between 4k and 16k tokens would put three times too many responses in the middle of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ...plans.check.solved_rules import input_path
from ...plans.schema.plan import LengthsInput
from ...plans.yaml.errors import InputError
from ...profiles.length_tables import (
    LengthTable,
    canonical_quantiles,
    is_quantiles,
    parse_quantiles,
    shipped_table,
    table_sha256,
    text_sha256,
)
from ...profiles.length_trace import PROMPT_TOKENS, LengthRow, LengthTrace, intraclass_correlation, read_lengths
from .length_model import LengthModel

PROMPTS, SAMPLES = 256, 16
"""Size of the trace: 4,096 responses show the one in a thousand that rounds wait for."""

ICC_TOLERANCE = 0.005
"""How near the trace's ICC comes to the table's."""

REWARD_SHARE = 0.5
"""Share of the samples with reward 1, at random: no table says what ties rewards to lengths."""

SCALE = ",scale="
"""What comes after a table's name, or after quantiles, before a factor on all lengths."""

SMALLEST_SCALE = 0.01

_SEED = 0
_HALVINGS = 20

# Share of the responses, from above, whose excess over their own least length says how the tail goes on.
_TAIL_SHARE = 0.1

_LONGEST = 300.0  # log of a length that no cap reaches, and that a float still holds


@dataclass(frozen=True)
class Variation:
    """Another job of a table's kind: all lengths times `scale`, their logarithms `spread` times as far from the median,
    and `icc` more or less dependence within a prompt."""

    scale: float = 1.0
    spread: float = 1.0
    icc: float = 0.0


class TableTrace(LengthTrace):
    """A trace that was drawn from `table`; solve states its table's error in the plan.

    Args:
        scale: factor on all lengths, before the cap, that was measured on the job; None: none was measured, so that
            the table's own error of it holds.
    """

    def __init__(self, table: LengthTable, variation: Variation | None = None, scale: float | None = None) -> None:
        self.table = table
        self.scale = scale
        varied = variation or Variation()
        super().__init__(
            _rows(table, dataclasses.replace(varied, scale=varied.scale * (scale or 1.0))), table.cap_tokens
        )

    def varied(self, variation: Variation) -> TableTrace:
        """The trace of another job of the table's kind, which differs by `variation`."""
        return TableTrace(self.table, variation, self.scale)

    def scaled(self, factor: float) -> TableTrace:
        """All lengths times `factor`, which was measured on the job, in addition to a scale that was before."""
        return TableTrace(self.table, scale=float(f"{(self.scale or 1.0) * factor:.4g}"))

    def variations(self) -> dict[str, tuple[Variation, Variation]]:
        """Variations by name (scale, spread, icc): one standard deviation of the table's error down and up."""
        error = self.table.error
        scale = (Variation(scale=math.exp(-error.scale)), Variation(scale=math.exp(error.scale)))
        return {
            **({"scale": scale} if self.scale is None else {}),
            "spread": (Variation(spread=1 - error.spread), Variation(spread=1 + error.spread)),
            "icc": (Variation(icc=-error.icc), Variation(icc=error.icc)),
        }


def _rows(table: LengthTable, variation: Variation) -> list[LengthRow]:
    natural = _varied(table, variation)
    rewards = np.random.default_rng([_SEED, 37]).random(natural.shape) < REWARD_SHARE
    cap = table.cap_tokens
    return [
        LengthRow(
            prompt=f"t{p:06d}",
            epoch=0,
            sample=s,
            tokens=max(1, math.ceil(min(natural[p, s], cap))),
            truncated=bool(natural[p, s] > cap),
            reward=float(rewards[p, s]),
            prompt_tokens=PROMPT_TOKENS,
        )
        for p in range(natural.shape[0])
        for s in range(natural.shape[1])
    ]


def _varied(table: LengthTable, variation: Variation) -> NDArray[np.float64]:
    """Uncapped lengths of a table's trace with a variation applied, shape (PROMPTS, SAMPLES)."""
    icc = min(0.99, max(0.0, table.icc + variation.icc))
    cdf = [(float(tokens), share) for tokens, share in table.quantiles]
    natural = copula_tokens(cdf, _rho(table, icc), PROMPTS, SAMPLES, _SEED)
    middle = float(np.median(natural))
    moved: NDArray[np.float64] = variation.scale * middle * (natural / middle) ** variation.spread
    return moved


def _rho(table: LengthTable, icc: float) -> float:
    """Correlation of the copula's scores with which the capped lengths have this ICC; it rises with it."""
    cdf = [(float(tokens), share) for tokens, share in table.quantiles]
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tokens = np.minimum(copula_tokens(cdf, middle, PROMPTS, SAMPLES, _SEED), table.cap_tokens)
        reached = intraclass_correlation(np.log1p(np.ceil(tokens)).tolist())
        if abs(reached - icc) < ICC_TOLERANCE:
            return middle
        low, high = (middle, high) if reached < icc else (low, middle)
    return (low + high) / 2


def named_lengths(option: str) -> tuple[TableTrace, LengthsInput]:
    """The trace that `--lengths` names (a shipped table or quantiles, with `,scale=F` after either), and its entry in a
    plan.

    Raises InputError.
    """
    option, scale = _scale_of(option)
    if is_quantiles(option):
        text = canonical_quantiles(option)
        given = LengthsInput(assumed=text, sha256=text_sha256(text))
        table = parse_quantiles(option)
    else:
        table, given = shipped_table(option), LengthsInput(library=option, sha256=table_sha256(option))
    if scale is not None:
        digest = text_sha256(f"{given.sha256},scale={scale:g}")
        given = given.model_copy(update={"scale": scale, "sha256": digest})
    return TableTrace(table, scale=scale), given


def shown_table(text: str) -> tuple[LengthTable, float | None]:
    """The table that `--lengths` names, its quantiles times the scale and cut at its cap; and the scale. Raises
    InputError."""
    bare, scale = _scale_of(text)
    table = parse_quantiles(bare) if is_quantiles(bare) else shipped_table(bare)
    return (table, None) if scale is None else (_scaled(table, scale), scale)


def _scaled(table: LengthTable, scale: float) -> LengthTable:
    cap = table.cap_tokens
    points = [(max(1, round(tokens * scale)), share) for tokens, share in table.quantiles if tokens * scale < cap]
    # How far lengths go on beyond the table's cap is the drawn trace's to say.
    at_cap = TableTrace(table, scale=scale).summary().truncated_share
    if at_cap:
        points.append((cap, max(1.0 - at_cap, points[-1][1] if points else 0.0)))
    return table.model_copy(update={"quantiles": tuple(points)})


def scaled_lengths(given: LengthsInput, scale: float) -> LengthsInput:
    """A plan's entry for a table, or for quantiles, with all lengths multiplied by `scale`."""
    return named_lengths(f"{given.library or given.assumed},scale={scale:g}")[1]


def _scale_of(text: str) -> tuple[str, float | None]:
    """(the word of `--lengths` without its scale, the scale). Raises InputError for what a table does not take."""
    name, *more = text.split(",")
    if not is_quantiles(name) and any(not each.startswith(SCALE[1:]) for each in more):
        raise InputError(
            f"--lengths {text[:120]}: a table takes only {SCALE}F after its name, as in {name}{SCALE}0.8; to say an "
            "ICC or quantiles of your own, write them without a table's name: p50=800,p95=4000,max=16384,icc=0.3"
        )
    rest, separator, value = text.rpartition(SCALE)
    if not separator:
        return text, None
    try:
        scale = float(f"{float(value):.4g}")
    except ValueError:
        scale = 0.0
    if "," in value:
        raise InputError(f"--lengths {text[:120]}: {SCALE}F must come last; move it to the end")
    if not SMALLEST_SCALE <= scale <= 1 / SMALLEST_SCALE:
        raise InputError(
            f"--lengths: {value!r} is no factor on lengths; write one from {SMALLEST_SCALE:g} to {1 / SMALLEST_SCALE:g}"
            f", as in {rest}{SCALE}0.8"
        )
    return rest, scale


def open_lengths(given: LengthsInput, plan_path: str | Path, cap_tokens: int | None = None) -> LengthTrace:
    """The length trace that a plan at `plan_path` names: a file's, or one drawn from a table.

    Args:
        cap_tokens: of a file, the length cap under which its rows were sampled; a table has its own.

    Raises InputError for a file that cannot be read, and a table that does not ship.
    """
    if given.file is not None:
        return read_lengths(input_path(given.file, plan_path), cap_tokens=cap_tokens)
    trace, _ = named_lengths(given.name)
    return trace


def changed_table(given: LengthsInput) -> str | None:
    """Text on a table that a plan names and that no longer ships, or ships with other figures; None if it is
    unchanged."""
    if given.file is not None:
        return None
    try:
        _, now = named_lengths(given.name)
    except InputError as error:
        return error.message
    if now.sha256 == given.sha256:
        return None
    where = "this version of rlplan ships other figures under that name" if given.library else "its digest is another's"
    return f"'{given.name}' is not what the plan was solved from: {where}"


def extrapolated(model: LengthModel, trace: LengthTrace) -> str | None:
    """A warning that lengths between the trace's cap and the job's are extrapolated; None if the trace shows all."""
    if model.caution is None or not isinstance(trace, TableTrace):
        return model.caution
    table, cap = trace.table, model.cap_tokens
    if table.name == "assumed":
        subject, remedy = "stated lengths end", f"state quantiles with max={cap}"
    else:
        subject = f"lengths of {table.name} were cut"
        remedy = f"take lengths under a cap of {cap} (rlplan lengths list)"
    return model.tail.extrapolated(cap, subject, f"{remedy}, or a trace of your own (--trace)")


# -- what is drawn -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedLengths:
    """A published CDF of lengths under a cap, checked; the tail above its last point goes on as a power law.

    Attributes:
        tokens: increasing lengths, at least 1.
        survival: share of the responses that are longer than each of `tokens`, decreasing, within [0, 1).
        tail_index: exponent of that power law: the share that is longer than x falls as x**-tail_index.
    """

    tokens: NDArray[np.float64]
    survival: NDArray[np.float64]
    tail_index: float

    @staticmethod
    def of(cdf: Sequence[tuple[float, float]]) -> PublishedLengths:
        """From (tokens, share of the responses within them) points. Raises ValueError if these are no CDF."""
        points = [(max(float(t), 1.0), float(share)) for t, share in cdf]
        if len(points) < 2:
            raise ValueError("a CDF needs at least two points")
        if any(not math.isfinite(t) or not 0.0 <= share <= 1.0 for t, share in points):
            raise ValueError("a CDF's shares must be within 0 and 1 (divide per cent by 100), its lengths finite")
        for (before, low), (after, high) in itertools.pairwise(points):
            if after < before or high < low:
                raise ValueError(f"a CDF does not fall: ({after:g}, {high:g}) comes after ({before:g}, {low:g})")
        # Of several shares at one length the highest is the CDF there.
        last = {t: share for t, share in points}
        tokens = np.array(list(last))
        survival = 1.0 - np.array(list(last.values()))
        return PublishedLengths(tokens, survival, _tail_index(tokens, survival))

    def quantiles(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lengths in tokens at `ranks` within (0, 1), above the last point by the tail's power law."""
        least = self.survival[self.survival > 0].min()
        # A share of 0 has no logarithm; half of the least positive one stands for it within the last interval.
        heights = np.log(np.maximum(self.survival, least / 2))
        wanted = np.log1p(-ranks)
        logs = np.interp(-wanted, -heights, np.log(self.tokens))
        end_share, end = float(self.survival[-1]), math.log(self.tokens[-1])
        if end_share > 0:
            beyond = wanted < math.log(end_share)
            logs = np.where(beyond, end + (math.log(end_share) - wanted) / self.tail_index, logs)
        lengths: NDArray[np.float64] = np.exp(np.minimum(logs, _LONGEST))
        return lengths


def _tail_index(tokens: NDArray[np.float64], survival: NDArray[np.float64]) -> float:
    """Hill's estimate with censoring at the last point: uncensored share over the integral of S(x) d log x."""
    if survival[-1] <= 0:
        return math.inf
    tail = (survival <= _TAIL_SHARE) & (survival > 0)
    if tail.sum() < 2:
        tail = np.zeros(len(survival), dtype=bool)
        tail[-2:] = True
    logs, shares = np.log(tokens[tail]), survival[tail]
    ended = float(shares[0] - shares[-1])
    excess = float((np.diff(logs) * (shares[1:] + shares[:-1]) / 2).sum())
    return ended / excess if ended > 0 and excess > 0 else 1.0


def copula_tokens(
    cdf: Sequence[tuple[float, float]], rho: float, prompts: int, samples: int, seed: int = 0
) -> NDArray[np.float64]:
    """Uncapped lengths of shape (prompts, samples) with this marginal and dependence; see the module's
    docstring. Raises ValueError for a CDF that is none, rho outside [0, 1], or sizes below 1."""
    if not 0.0 <= rho <= 1.0:
        raise ValueError(f"rho must be within 0 and 1, not {rho}")
    if min(prompts, samples) < 1:
        raise ValueError("prompts and samples must be at least 1")
    marginal = PublishedLengths.of(cdf)
    rng = np.random.default_rng([seed, 31])
    normal = NormalDist()
    factor = np.array([normal.inv_cdf((i + 0.5) / prompts) for i in range(prompts)])
    rng.shuffle(factor)
    scores = math.sqrt(rho) * factor[:, None] + math.sqrt(1.0 - rho) * rng.standard_normal((prompts, samples))
    order = np.argsort(scores, axis=None, kind="stable")
    ranks = np.empty(scores.size)
    ranks[order] = (np.arange(scores.size) + 0.5) / scores.size
    return marginal.quantiles(ranks).reshape(scores.shape)
