"""A length trace drawn from a table of quantiles, and the traces that other jobs of its kind might have.

The law is that of copula_lengths.py: the table's marginal, and a one-factor Gaussian copula within a prompt. Its rho is
found by bisection, such that the trace has the table's ICC of log(1 + tokens) to `ICC_TOLERANCE`. Everything is drawn
with one fixed seed: a table gives one trace, the same everywhere, so a plan names the table and not the trace.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

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
from .copula_lengths import copula_tokens

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
