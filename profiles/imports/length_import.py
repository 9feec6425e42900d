"""A length trace from another tool's log of responses: one response a row, columns as in log_columns.py."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from ...plans.yaml.errors import InputError
from ..length_tables import MOST_TOKENS
from ..length_trace import LengthRow
from .log_columns import Field, TableRow, number, read_rows, score, truth

FIELDS = (
    Field("prompt", ("prompt_id", "uid", "id", "index"), needed=True),
    Field("tokens", ("response_tokens", "response_length", "output_tokens", "completion_tokens"), needed=True),
    Field("epoch", ("step",)),
    Field("sample", ("sample_id", "rollout")),
    Field("truncated", ("is_truncated",)),
    Field("finish_reason", ("stop_reason", "done_reason", "stop_type")),
    Field("reward", ("score",)),
    Field("prompt_tokens", ("input_tokens", "prompt_length")),
)
"""The fields of a row, and the usual names of their columns (verl and slime dumps among them)."""

LONGEST_ID = 64
"""A prompt's name that is longer is a text, of which only a digest is kept, since the trace must not hold prompts."""


def import_lengths(path: Path, columns: Mapping[str, str], cap_tokens: int | None = None) -> list[LengthRow]:
    """The rows of a table as rows of a length trace, in the table's order.

    Without a column for it: `epoch` is 0, `sample` counts the responses of a prompt in an epoch, `reward` and
    `prompt_tokens` are not known, a response is truncated where it has `cap_tokens` (of no cap, that is not known).

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
        cut = _is_cut(row, path, line)
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
                truncated=cut if cut is not None or cap_tokens is None else tokens >= cap_tokens,
                reward=None if row.get("reward") in (None, "") else score(row, "reward", path, line, None),
                prompt_tokens=None
                if row.get("prompt_tokens") in (None, "")
                else _whole(row, "prompt_tokens", path, line, 1, None),
            )
        )
    return rows


_CUT = (
    "length", "max_tokens", "max_length", "max_new_tokens", "max_output_tokens", "max_completion_tokens",
    "model_length", "token_limit", "limit", "truncated", "truncate", "cut", "overlong", "abort", "aborted",
    "cancelled", "canceled", "interrupted", "timeout", "timed_out", "content_filter",
)  # fmt: skip
_WHOLE = (
    "stop", "stopped", "stop_sequence", "stop_token", "stop_string", "stop_str", "word", "eos", "eos_token", "end",
    "end_turn", "finish", "finished", "complete", "completed", "done", "success", "tool_call", "tool_calls", "tool_use",
    "function_call",
)  # fmt: skip
"""Why responses end, as engines and trainers say it: cut by a cap or by whoever ended them, or by themselves."""


def _is_cut(row: TableRow, path: Path, line: int) -> bool | None:
    """Whether a response was cut before its end; None where the row does not say."""
    for name in ("truncated", "finish_reason"):
        value = row.get(name)
        if isinstance(value, dict):  # SGLang: {"type": "length", "length": 4096}
            value = value.get("type")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        # FinishReason.LENGTH, max-tokens, "Max tokens"
        word = re.sub(r"[\W_]+", "_", str(value).rpartition(".")[2].strip()).strip("_").lower()
        if isinstance(value, str) and word in (*_CUT, *_WHOLE):
            return word in _CUT
        try:
            found = truth(row, name, path, line)
        except InputError:
            why = f"is {str(value)[:40]!r}, and not whether the response was cut"
            raise row.fault(name, why, path, line, "write stop or length, true or false") from None
        # A number is vLLM's stop_reason: the token at which the response ended by itself.
        return found and (name == "truncated" or not word.isdigit())
    return None


def _prompt(row: TableRow, path: Path, line: int) -> str:
    value = row.get("prompt")
    text = "" if value is None else value if isinstance(value, str) else repr(value)
    if not text.strip():
        raise InputError("prompt is empty; fill it in or remove the row", str(path), line)
    if len(text) <= LONGEST_ID and text.isprintable():
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _whole(row: TableRow, name: str, path: Path, line: int, least: int, default: int | None) -> int:
    value = number(row, name, path, line, default) if name in row or default is None else default
    if value is None or value != round(value) or not least <= value <= MOST_TOKENS:
        raise row.fault(
            name, f"must be a whole number from {least} to {MOST_TOKENS}, not {row.get(name)!r}", path, line
        )
    return round(value)
