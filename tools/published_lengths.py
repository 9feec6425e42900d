"""Length traces that others published: CSV, plain or gzipped, one response a line.

    source,step,prompt_id,sample_id,response_tokens,reward

`source` names the model or the data set and `step` the checkpoint; what shares a source is one trace, in which the
step stands for the epoch. `reward` may be empty (read as 0). No column says which responses the cap cut, and counts of
another vocabulary blur a cap, so none is marked as cut unless the reader names the cap.
"""

from __future__ import annotations

import math
from pathlib import Path

from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_trace import LengthRow, LengthTrace

from .published_csv import csv_rows

COLUMNS = ("source", "step", "prompt_id", "sample_id", "response_tokens", "reward")


def read_length_table(path: str | Path, cap_tokens: int | None = None) -> dict[str, LengthTrace]:
    """The traces of a file by source, sorted. An empty response counts as one token, the end of the text.

    Args:
        cap_tokens: responses of at least so many tokens count as cut by the cap at it.

    Raises InputError, with the line where one is at fault: a missing or unreadable file, other columns, values that are
    no numbers, a sample that is there twice, no rows.
    """
    rows: dict[str, list[LengthRow]] = {}
    seen: dict[tuple[str, int, str, int], int] = {}
    for line, record in csv_rows(path, COLUMNS):
        try:
            row = _row(record, cap_tokens)
        except (TypeError, ValueError) as error:
            raise InputError(f"{error}; correct the row", str(path), line) from None
        identity = (record["source"], row.epoch, row.prompt, row.sample)
        if identity in seen:
            raise InputError(f"the same sample is also in line {seen[identity]}; remove one", str(path), line)
        seen[identity] = line
        rows.setdefault(record["source"], []).append(row)
    if not rows:
        raise InputError("has no rows", str(path))
    return {source: LengthTrace(source_rows, cap_tokens) for source, source_rows in sorted(rows.items())}


def _row(record: dict[str, str], cap_tokens: int | None) -> LengthRow:
    tokens, reward = _number(record, "response_tokens"), record["reward"]
    if tokens < 0:
        raise ValueError("response_tokens must not be negative")
    whole = max(1, round(tokens))
    cut = cap_tokens is not None and whole >= cap_tokens
    return LengthRow(
        prompt=record["prompt_id"],
        epoch=int(_number(record, "step")),
        sample=int(_number(record, "sample_id")),
        tokens=min(whole, cap_tokens) if cap_tokens is not None else whole,
        truncated=cut,
        reward=_number(record, "reward") if reward else 0.0,
        prompt_tokens=1,
    )


def _number(record: dict[str, str], key: str) -> float:
    try:
        value = float(record[key])
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be a number, not {record[key]!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{key} must be finite, not {record[key]!r}")
    return value
