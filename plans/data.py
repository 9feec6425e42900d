"""The prompts: JSONL, one object a row with `id`, `prompt` and `answer`. Further keys of a row are left alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError
from .job import Job
from .json_text import parse_json
from .limits import DATA_BYTES
from .reading import read_text


@dataclass(frozen=True)
class Prompt:
    """One row.

    Attributes:
        id: unique in the file.
        prompt: text, or chat messages as dicts with `role` and `content`.
        answer: whatever the reward needs; any JSON value.
    """

    id: str
    prompt: str | list[dict[str, str]]
    answer: Any


def read_prompts(path: str | Path) -> list[Prompt]:
    """The rows in file order; empty lines are skipped.

    Raises InputError with the line: a row that is no JSON object, lacks a key, has a prompt that is neither text nor
    messages, or repeats an id; and without a line: a missing file, a file without rows.
    """
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    # Not splitlines(): that also breaks at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(read_text(path, DATA_BYTES).split("\n"), 1):
        if not line.strip():
            continue
        prompt = _row(line, str(path), number)
        if prompt.id in first_line:
            raise InputError(
                f"id '{prompt.id}' is also in line {first_line[prompt.id]}; give each row its own", str(path), number
            )
        first_line[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise InputError('has no rows; write one {"id": …, "prompt": …, "answer": …} a line', str(path))
    return prompts


def enough_prompts(job: Job, data: str | Path) -> int:
    """How many prompts the job's data file holds.

    Raises InputError as `read_prompts` does, and if they are fewer than a step trains: prompts of a step differ, so no
    step could ever be whole.
    """
    rows, needed = len(read_prompts(data)), job.rollout.prompts_per_step
    if rows < needed:
        raise InputError(
            f"has {rows} prompts, and a step trains {needed} different ones (rollout.prompts_per_step); add rows, or "
            "lower that",
            str(data),
        )
    return rows


def _row(line: str, path: str, number: int) -> Prompt:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise InputError(f"{error}; each line holds one whole JSON object", path, number) from None
    if not isinstance(row, dict):
        raise InputError("must be a JSON object with id, prompt and answer", path, number)
    for key in ("id", "prompt", "answer"):
        if key not in row:
            raise InputError(f"missing key '{key}'; each row has id, prompt and answer", path, number)
    if not isinstance(row["id"], str) or not row["id"]:
        raise InputError(f"id must be text, not {row['id']!r}; put it in quotes", path, number)
    if not _is_prompt(row["prompt"]):
        raise InputError('prompt must be text or a list of {"role": …, "content": …} with text in both', path, number)
    return Prompt(row["id"], row["prompt"], row["answer"])


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(m, dict) and m.keys() == {"role", "content"} and all(isinstance(v, str) for v in m.values())
            for m in value
        )
    )
