"""A length trace from another tool's log of responses: one response a row, columns as in log_columns.py."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ...plans.yaml.errors import InputError
from ..length_tables import MOST_TOKENS
from ..length_trace import LengthRow
from .log_columns import Field, Row, number, read_rows, truth

FIELDS = (
    Field("prompt", ("prompt_id", "uid", "id", "index"), needed=True),
    Field("tokens", ("response_tokens", "response_length", "output_tokens", "completion_tokens"), needed=True),
    Field("epoch", ("step",)),
    Field("sample", ("sample_id", "rollout")),
    Field("truncated"),
    Field("reward", ("score",)),
    Field("prompt_tokens", ("input_tokens", "prompt_length")),
)
"""The fields of a row, and the usual names of their columns (verl and slime dumps among them)."""

LONGEST_ID = 64
"""A prompt's name that is longer is a text, of which only a digest is kept, since the trace must not hold prompts."""

PROMPT_TOKENS = 256
"""Tokens of a prompt whose row does not say."""


def import_lengths(path: Path, columns: Mapping[str, str], cap_tokens: int | None = None) -> list[LengthRow]:
    """The rows of a table as rows of a length trace, in the table's order.

    Without a column for it: `epoch` is 0, `sample` counts the responses of a prompt in an epoch, `reward` is 0, a
    response is truncated where it has `cap_tokens` (of no cap, none is).

    Args:
        columns: {field: column}, as from `columns.assignments`.
        cap_tokens: the cap under which the responses were sampled; None: not known.

    Raises InputError, with the line where one is at fault.
    """
    rows: list[LengthRow] = []
    counted: dict[tuple[str, int], int] = {}
    seen: dict[tuple[str, int, int], int] = {}
    for line, row in read_rows(path, FIELDS, columns):
        prompt = _prompt(row, path, line)
        epoch = _whole(row, "epoch", path, line, 0, 0)
        nth = counted.get((prompt, epoch), 0)
        counted[prompt, epoch] = nth + 1
        sample = _whole(row, "sample", path, line, 0, nth)
        tokens = _whole(row, "tokens", path, line, 0, None)
        if cap_tokens is not None and tokens > cap_tokens:
            raise InputError(
                f"tokens is {tokens}, above --cap {cap_tokens}; give the cap that these were sampled under",
                str(path),
                line,
            )
        cut = truth(row, "truncated", path, line) if row.get("truncated") not in (None, "") else None
        if (prompt, epoch, sample) in seen:
            raise InputError(
                f"the same sample is also in line {seen[prompt, epoch, sample]}; remove one, or name the columns that "
                "tell them apart (--column sample=NAME, --column epoch=NAME)",
                str(path),
                line,
            )
        seen[prompt, epoch, sample] = line
        rows.append(
            LengthRow(
                prompt=prompt,
                epoch=epoch,
                sample=sample,
                tokens=max(1, tokens),  # an empty response is its end-of-text
                truncated=cut if cut is not None else cap_tokens is not None and tokens >= cap_tokens,
                reward=number(row, "reward", path, line, 0.0) if "reward" in row else 0.0,
                prompt_tokens=_whole(row, "prompt_tokens", path, line, 1, PROMPT_TOKENS),
            )
        )
    return rows


def _prompt(row: Row, path: Path, line: int) -> str:
    value = row.get("prompt")
    text = "" if value is None else value if isinstance(value, str) else repr(value)
    if not text.strip():
        raise InputError("prompt is empty; fill it in or remove the row", str(path), line)
    if len(text) <= LONGEST_ID and text.isprintable():
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _whole(row: Row, name: str, path: Path, line: int, least: int, default: int | None) -> int:
    value = number(row, name, path, line, default) if name in row or default is None else default
    if value is None or value != round(value) or not least <= value <= MOST_TOKENS:
        raise InputError(
            f"{name} must be a whole number from {least} to {MOST_TOKENS}, not {row.get(name)!r}; correct the row",
            str(path),
            line,
        )
    return round(value)
