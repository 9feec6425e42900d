"""The length trace: how many tokens each sampled response had, one JSON object a line.

    {"prompt": "k00012", "epoch": 0, "sample": 3, "tokens": 57, "truncated": false, "reward": 1.0, "prompt_tokens": 18}

A row with `event: sample` of an executed run's trace (traces/trace.py) is read as well. Of those only trained and
filtered samples are kept, since the rest were cut short; they are unconditioned in modes `sync`, `predict` and, over
whole epochs, `exact`, and as biased as the mode in `race` and `defer`. Further keys are left alone.

Invariant: a `LengthTrace` is never empty, and no (prompt, epoch, draw, sample) is in it twice.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ..plans.files.row_files import decoded, unpacked
from ..plans.schema.base import MOST_NUMBER, MOST_TOKENS
from ..plans.yaml.errors import InputError, joined
from ..plans.yaml.input_files import DATA_BYTES
from ..plans.yaml.json_text import parse_json
from ..plans.yaml.yaml_io import atomic_write, sha256_file
from .profile_schema import ProfileLengths


class LengthLine(BaseModel):
    """One response of a length trace; a trace is JSON Lines, one such object a line. Further keys are left alone."""

    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    prompt: Annotated[str, Field(min_length=1)]
    """What tells prompts apart; the same text for all responses to a prompt."""

    epoch: Annotated[int, Field(ge=0)]
    """Pass over the data, or number of the checkpoint; 0 where there is one."""

    sample: Annotated[int, Field(ge=0)]
    """Number of the response among those to this prompt in this epoch, from 0."""

    tokens: Annotated[int, Field(ge=1)]
    """Tokens of the response, end-of-text included."""

    truncated: bool | None = None
    """Whether the cap on its length ended it, and not end-of-text; null: not known, and taken to be no."""

    reward: float | None = None
    """Reward of the response; null: not known."""

    prompt_tokens: Annotated[int | None, Field(ge=1)] = None
    """Tokens of the prompt; null: not known, and taken to be 256."""


PROMPT_TOKENS = 256
"""Tokens that a prompt is taken to have where nothing says."""

_WHOLE_FATES = ("trained", "filtered")
_LEAST = {"tokens": 1, "prompt_tokens": 1, "epoch": 0, "sample": 0}
_MOST = {"tokens": MOST_TOKENS, "prompt_tokens": MOST_TOKENS, "epoch": MOST_NUMBER, "sample": MOST_NUMBER}
_KINDS: dict[str, type] = {
    "prompt": str, "epoch": int, "sample": int, "tokens": int, "truncated": bool, "reward": float, "prompt_tokens": int
}  # fmt: skip
_MAY_LACK = ("truncated", "reward", "prompt_tokens")
_MEND = "restore the file or cut it here"


@dataclass(frozen=True, slots=True)
class LengthRow:
    """One response: lengths in tokens; `truncated` if the cap ended it and not end-of-text. None: not known."""

    prompt: str
    epoch: int
    sample: int
    tokens: int
    truncated: bool | None
    reward: float | None
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """What a length trace says at a glance; lengths in tokens. None: it does not say."""

    prompts: int
    samples: int
    mean_tokens: float
    p50_tokens: float
    p95_tokens: float
    max_tokens: int
    truncated_share: float | None
    mean_reward: float | None
    icc: float | None


class LengthTrace:
    """The rows of a trace, sorted by (prompt, epoch, sample).

    Args:
        rows: at least one.
        cap_tokens: length cap under which they were sampled; None takes it from the truncated rows.

    Raises ValueError if there is no row.
    """

    def __init__(self, rows: Iterable[LengthRow], cap_tokens: int | None = None) -> None:
        self.rows: tuple[LengthRow, ...] = tuple(sorted(rows, key=lambda r: (r.prompt, r.epoch, r.sample)))
        if not self.rows:
            raise ValueError("a length trace needs at least one row")
        longest = max(r.tokens for r in self.rows)
        # Where no row of the longest is truncated the cap is unknown, and none of the lengths is censored by it.
        reached = any(r.truncated and r.tokens == longest for r in self.rows)
        self.cap_tokens: int = cap_tokens if cap_tokens is not None else longest + (not reached)

    @property
    def prompts(self) -> tuple[str, ...]:
        """The different prompts, sorted."""
        return tuple(dict.fromkeys(r.prompt for r in self.rows))

    @property
    def tokens_by_token(self) -> float:
        """Tokens of a sample, prompt included, mean over all tokens: those that a token of it may attend to, twice."""
        tokens = [row.tokens + (row.prompt_tokens or PROMPT_TOKENS) for row in self.rows]
        return sum(t * t for t in tokens) / max(1, sum(tokens))

    def by_prompt(self) -> dict[str, tuple[LengthRow, ...]]:
        """The rows of each prompt, all epochs together."""
        groups: dict[str, list[LengthRow]] = {}
        for row in self.rows:
            groups.setdefault(row.prompt, []).append(row)
        return {prompt: tuple(rows) for prompt, rows in groups.items()}

    def icc(self) -> float:
        """Share of the variance of log(1 + tokens) between prompts."""
        return intraclass_correlation([[math.log1p(r.tokens) for r in rows] for rows in self.by_prompt().values()])

    def text(self) -> str:
        """The trace as its file has it."""
        told = ({key: value for key, value in asdict(row).items() if value is not None} for row in self.rows)
        lines = (json.dumps(row, separators=(", ", ": "), ensure_ascii=False) for row in told)
        return "".join(line + "\n" for line in lines)

    def summary(self) -> LengthSummary:
        """The trace at a glance. Every row weighs the same."""
        tokens = np.array([r.tokens for r in self.rows], dtype=np.float64)
        cut = [r.truncated for r in self.rows if r.truncated is not None]
        rewards = [r.reward for r in self.rows if r.reward is not None]
        return LengthSummary(
            prompts=len(self.prompts),
            samples=len(self.rows),
            mean_tokens=float(tokens.mean()),
            p50_tokens=float(np.quantile(tokens, 0.5)),
            p95_tokens=float(np.quantile(tokens, 0.95)),
            max_tokens=int(tokens.max()),
            truncated_share=sum(cut) / len(cut) if cut else None,
            mean_reward=float(np.mean(rewards)) if rewards else None,
            icc=self.icc() if 1 < len(self.prompts) < len(self.rows) else None,
        )


def intraclass_correlation(groups: Sequence[Sequence[float]]) -> float:
    """One-way random-effects ICC(1) from the analysis of variance, for groups of unequal size; within [0, 1].

    0 when nothing varies or when no group has two values (the dependence cannot be seen then).
    """
    arrays: list[NDArray[np.float64]] = [np.asarray(g, dtype=np.float64) for g in groups if len(g)]
    count, total = len(arrays), sum(len(g) for g in arrays)
    if count < 2 or total == count:
        return 0.0
    grand = float(np.concatenate(arrays).mean())
    between = sum(len(g) * (float(g.mean()) - grand) ** 2 for g in arrays) / (count - 1)
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in arrays) / (total - count)
    # The usual n0 of unbalanced designs (Searle, Casella and McCulloch, Variance Components, 3.6).
    size = (total - sum(len(g) ** 2 for g in arrays) / total) / (count - 1)
    variance = max(0.0, (between - within) / size)
    return variance / (variance + within) if variance + within > 0 else 0.0


def write_lengths(path: str | Path, rows: Iterable[LengthRow]) -> None:
    """Write a length trace atomically, in the order of (prompt, epoch, sample)."""
    atomic_write(path, LengthTrace(rows).text())


def write_profile_lengths(path: Path, trace: LengthTrace) -> ProfileLengths:
    """Write the length trace of a profile, beside which it lies; returns the profile's entry for it."""
    write_lengths(path, trace.rows)
    summary = trace.summary()
    return ProfileLengths(
        path=path.name,
        sha256=sha256_file(path),
        prompts=summary.prompts,
        samples=summary.samples,
        cap_tokens=trace.cap_tokens,
        icc=summary.icc,
    )


def read_lengths(path: str | Path, cap_tokens: int | None = None) -> LengthTrace:
    """Read a length trace, or the `sample` events of an executed run's trace.

    A torn last line (not valid JSON, or no line end after it and keys missing) is skipped with a warning. Raises
    InputError with the line for any other damage, each fault of that row by itself, and without a line for a missing
    file or one without usable rows.

    Args:
        cap_tokens: length cap under which the rows were sampled; a row beyond it is an error.
    """
    text = decoded(unpacked(path, DATA_BYTES), path, "CSV, then: rlplan lengths import FILE -o lengths.jsonl")
    if text.lstrip()[:1] not in ("{", ""):
        todo = "rlplan lengths import FILE -o lengths.jsonl makes one of a table"
        raise InputError(f"is no length trace, which has a JSON object a line; {todo}", str(path), 1)
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    rows: list[LengthRow] = []
    seen: dict[tuple[object, ...], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            parsed = _parse(line)
        except (ValueError, _BadRow) as error:
            if number == len(lines) and not text.endswith("\n"):
                warnings.warn(f"{path}:{number}: torn last line skipped; read up to it", stacklevel=2)
                break
            faults = error.faults if isinstance(error, _BadRow) else [f"{error}; {_MEND}"]
            raise joined([InputError(fault, str(path), number) for fault in faults]) from None
        if parsed is None:
            continue
        row, identity = parsed
        if cap_tokens is not None and row.tokens > cap_tokens:
            raise InputError(
                f"tokens is {row.tokens}, beyond the cap of {cap_tokens} that the profile names; profile again",
                str(path),
                number,
            )
        if identity in seen:
            raise InputError(f"the same sample is also in line {seen[identity]}; remove one", str(path), number)
        seen[identity] = number
        rows.append(row)
    if not rows:
        raise InputError("has no whole sample; run `rlplan profile` to make a length trace", str(path))
    return LengthTrace(rows, cap_tokens)


class _BadRow(Exception):
    """A row that is no response of a trace."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def _parse(line: str) -> tuple[LengthRow, tuple[object, ...]] | None:
    """A row and what identifies it; None for lines of a run's trace that hold no whole sample. Raises ValueError for
    what is no JSON object, and _BadRow for one that is no response."""
    data = parse_json(line)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    if "event" in data and (data["event"] != "sample" or data.get("fate") not in _WHOLE_FATES):
        return None
    faults = [fault for key in _KINDS if (fault := _fault(data, key)) is not None]
    if faults:
        raise _BadRow(faults)
    values: dict[str, Any] = {key: data.get(key) for key in _KINDS}
    if values["reward"] is not None:
        values["reward"] = float(values["reward"])
    row = LengthRow(**values)
    return row, (row.prompt, row.epoch, data.get("round"), data.get("draw"), row.sample)


def _fault(data: dict[str, Any], key: str) -> str | None:
    """Text on the fault of a row's key, and what to do."""
    if data.get(key) is None and key in _MAY_LACK:
        return None
    if key not in data:
        return f"missing key '{key}'; add it, or make the trace with rlplan lengths import"
    value, kind = data[key], _KINDS[key]
    # bool is an int in Python, and `"tokens": true` is damage all the same.
    if kind is float:
        # An int of JSON may be too large for a float.
        a_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        finite = a_number and abs(value) <= sys.float_info.max
        return None if finite else f"{key} must be a finite number, not {repr(value)[:40]}; {_MEND}"
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return f"{key} must be {kind.__name__}, not {value!r}; {_MEND}"
    if kind is str and not value:
        return f"{key} must not be empty; {_MEND}"
    if kind is not int:
        return None
    number = int(data[key])
    if number < _LEAST[key]:
        return f"{key} must be at least {_LEAST[key]}, not {number}; {_MEND}"
    return f"{key} is {number}, and at most {_MOST[key]} is believed; {_MEND}" if number > _MOST[key] else None
