"""Lengths without a trace: a few quantiles and one number for how alike a prompt's responses are.

Such tables ship (library/lengths/NAME.yaml), each derived from public measurements of one kind of task under one cap;
or three quantiles stand on the command line: `p50=800,p95=4000,max=16384`. planner/lengths/table_lengths.py draws a
trace from a table. None of it is the user's own job, so a table says how far a job of its kind may be off
(`TableError`), and a plan that was solved from it has that in its error.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

from pydantic import Field, model_validator

from ..plans.schema.base import Name, cross_error
from ..plans.yaml.errors import InputError
from ..plans.yaml.yaml_io import load, read_text
from .phase_schema import ProfileModel

FOLDER = Path(__file__).parent / "library" / "lengths"
"""Where the tables are that ship."""

MOST_TOKENS = 10_000_000
"""No response is longer: ten times the longest context that any public model takes."""

ASSUMED_ICC = 0.5
"""ICC where none is stated: between 0.2 (uniformly hard prompts) and 0.85 (mixed ones), the extremes measured."""

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class TableError(ProfileModel):
    """How far another job of the same kind may be off: one standard deviation each."""

    scale: Annotated[float, Field(ge=0, le=3)]
    """Of the logarithm of all lengths together."""

    spread: Annotated[float, Field(ge=0, le=0.9)]
    """Of the spread of the logarithms of lengths, relative."""

    icc: Annotated[float, Field(ge=0, le=1)]
    """Of the ICC."""


class LengthTable(ProfileModel):
    """Quantiles of the lengths of one kind of task."""

    name: Name
    """What `--lengths` takes; of quantiles on the command line, `assumed`."""

    task: Annotated[str, Field(min_length=1)]
    """What the prompts ask for, in words."""

    model: str
    """Whose responses were measured; empty: none were."""

    cap_tokens: Tokens
    """Response length in tokens at which sampling was stopped."""

    quantiles: Annotated[tuple[tuple[Tokens, Annotated[float, Field(ge=0, le=1)]], ...], Field(min_length=2)]
    """(length in tokens, share of the responses that are at most as long), ascending. What is above the last share was
    stopped at the last length."""

    icc: Annotated[float, Field(ge=0, lt=1)]
    """Share of the variance of log(1 + tokens) that lies between prompts."""

    icc_source: Annotated[str, Field(min_length=1)]
    """Where that comes from."""

    error: TableError
    """How far another job of the same kind may be off."""

    error_source: Annotated[str, Field(min_length=1)]
    """Where that comes from."""

    source: Annotated[str, Field(min_length=1)]
    """Publication or repository, licence, and number of responses."""

    note: str = ""
    """What a reader must know before using it."""

    @model_validator(mode="after")
    def _quantiles_ascend(self) -> LengthTable:
        for (tokens, share), (more, higher) in itertools.pairwise(self.quantiles):
            if more <= tokens or higher < share:
                raise cross_error(f"({more}, {higher}) must not come after ({tokens}, {share})", "quantiles")
        if self.quantiles[-1][0] > self.cap_tokens:
            raise cross_error(f"a length of {self.quantiles[-1][0]} is above cap_tokens", "quantiles")
        return self

    def quantile(self, share: float) -> int:
        """Length in tokens that `share` of the responses do not exceed: a line in log tokens between the quantiles."""
        logs = [math.log(tokens) for tokens, _ in self.quantiles]
        shares = [of for _, of in self.quantiles]
        for place in range(1, len(shares)):
            if share <= shares[place]:
                width = shares[place] - shares[place - 1]
                inside = (share - shares[place - 1]) / width if width > 0 else 1.0
                return max(1, round(math.exp(logs[place - 1] + max(0.0, inside) * (logs[place] - logs[place - 1]))))
        return self.quantiles[-1][0]

    @property
    def at_cap(self) -> float:
        """Share of the responses that the cap stopped."""
        return 1.0 - self.quantiles[-1][1]


def table_names() -> list[str]:
    """Names of the tables that ship, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def shipped_table(name: str) -> LengthTable:
    """The table that ships under `name`. Raises InputError, with the names that there are, if none does."""
    return load(_path(name), LengthTable)


def table_sha256(name: str) -> str:
    """SHA-256 of the table that ships under `name`, whatever line ends it was installed with. Raises InputError."""
    return text_sha256(read_text(_path(name)))


def text_sha256(text: str) -> str:
    """SHA-256 of a text with LF line ends, 64 hexadecimal digits."""
    return hashlib.sha256("\n".join(text.splitlines()).encode()).hexdigest()


def _path(name: str) -> Path:
    if name not in table_names():
        import difflib

        near = difflib.get_close_matches(name, table_names(), 1)
        hint = f"did you mean '{near[0]}'? There are: " if near else "there are: "
        raise InputError(
            f"no lengths ship as {name!r}; {hint}{', '.join(table_names())}; or write quantiles: "
            "p50=800,p95=4000,max=16384"
        )
    return FOLDER / f"{name}.yaml"


# Of quantiles that somebody wrote down without measuring: a job whose median is known to a factor of about 1.6, and
# whose p95 over p50 is known to a third.
_ASSUMED_ERROR = TableError(scale=0.5, spread=0.3, icc=0.25)

_BODY = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)


def is_quantiles(text: str) -> bool:
    """Whether the word of `--lengths` is quantiles and not a name."""
    return "=" in text


def parse_quantiles(text: str) -> LengthTable:
    """The table of `p50=800,p95=4000,max=16384[,icc=0.5]`: p50, at least one higher percentile, and the longest.

    Between two percentiles, and above the last, log lengths are a line in normal scores (of two percentiles: a
    log-normal law); `max` cuts it. Raises InputError, on one line, for anything else.
    """
    given, icc = _given(text)
    longest = given.pop("max", None)
    percentiles = sorted((float(key[1:]) / 100, tokens) for key, tokens in given.items())
    if longest is None or not any(share == 0.5 for share, _ in percentiles) or percentiles[-1][0] <= 0.5:
        raise _wrong(text, "p50, a higher percentile and max are needed")
    ordered = [*(tokens for _, tokens in percentiles), longest]
    if any(b <= a for a, b in itertools.pairwise(ordered)):
        raise _wrong(text, "lengths must rise with their percentiles, and max must be above them all")
    normal = NormalDist()
    scores = [normal.inv_cdf(share) for share, _ in percentiles]
    logs = [math.log(tokens) for _, tokens in percentiles]
    levels = sorted({*_BODY, *(share for share, _ in percentiles)})
    points = [(round(math.exp(_line(normal.inv_cdf(level), scores, logs))), level) for level in levels]
    points = [(tokens, level) for tokens, level in points if 1 <= tokens < longest]
    # If the law reaches the longest length, the remaining responses were stopped there; else none was.
    reached = normal.cdf(_line(math.log(longest), logs, scores))
    points.append((longest, max(points[-1][1], reached if reached < 0.9995 else 1.0)))
    rising = [point for before, point in zip([(0, 0.0), *points], points, strict=False) if point[0] > before[0]]
    stated = ", ".join(f"p{100 * share:g} {tokens:g}" for share, tokens in percentiles)
    return LengthTable(
        name="assumed",
        task="from your quantiles (not measured)",
        model="",
        cap_tokens=longest,
        quantiles=tuple(rising),
        icc=ASSUMED_ICC if icc is None else icc,
        icc_source="default (not measured)" if icc is None else "as stated",
        error=_ASSUMED_ERROR,
        error_source="default for quantiles (not measured)",
        source=f"written on the command line: {stated}, max {longest}",
        note="log-normal between and above the stated percentiles",
    )


def canonical_quantiles(text: str) -> str:
    """The same figures in one order and spelling, for a plan to name: equal figures have equal texts."""
    given, icc = _given(text)
    longest = given.pop("max", None)
    keys = sorted(given, key=lambda key: float(key[1:]))
    settings = [f"{key}={given[key]}" for key in keys]
    settings += [] if longest is None else [f"max={longest}"]
    return ",".join([*settings, f"icc={ASSUMED_ICC if icc is None else icc:g}"])


def _given(text: str) -> tuple[dict[str, int], float | None]:
    """({p50: tokens, ..., max: tokens}, ICC or None)."""
    quantiles: dict[str, int] = {}
    icc: float | None = None
    for setting in text.split(","):
        key, equals, value = (part.strip() for part in setting.partition("="))
        try:
            number = float(value)
        except ValueError:
            raise _wrong(text, f"{setting.strip()!r} is no KEY=NUMBER") from None
        if not equals or key in quantiles or (key == "icc" and icc is not None):
            raise _wrong(text, f"{setting.strip()!r} is no KEY=NUMBER, or its key stands there twice")
        if key == "icc":
            if not 0 <= number < 1:
                raise _wrong(text, f"icc must be within 0 and 1, not {value}")
            icc = number
            continue
        share = key[1:] if key.startswith("p") else ""
        if key != "max" and not (share.replace(".", "", 1).isdigit() and 0 < float(share) < 100):
            raise _wrong(text, f"{key!r} is none of p1 to p99.9, max and icc")
        if not 1 <= number <= MOST_TOKENS or number != round(number):
            raise _wrong(text, f"{key} must be a whole number of tokens from 1 to {MOST_TOKENS}, not {value}")
        quantiles[key] = round(number)
    return quantiles, icc


def _line(x_value: float, xs: list[float], ys: list[float]) -> float:
    """Linear between the points, and beyond them by the slope of the nearest two."""
    place = min(max(1, sum(x < x_value for x in xs)), len(xs) - 1)
    slope = (ys[place] - ys[place - 1]) / (xs[place] - xs[place - 1])
    return ys[place - 1] + slope * (x_value - xs[place - 1])


def _wrong(text: str, why: str) -> InputError:
    return InputError(f"--lengths {text[:120]}: {why}; write for example p50=800,p95=4000,max=16384,icc=0.5")
