"""The prompts: JSONL, one object a row with `id`, `prompt` and `answer`. Further keys of a row are left alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError
from .job import Job, JobPaths, job_paths, missing_files
from .yaml_io import error_at, read_text


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
    for number, line in enumerate(read_text(path).split("\n"), 1):
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


def data_file(job: Job, job_path: str | Path) -> Path:
    """Absolute path of the job's prompts, for what needs them: measuring and training. Raises InputError without."""
    data = job_paths(job, job_path).data
    if data is None:
        fault = dict(missing_files(job, job_path, to_train=True))["data", "path"]
        raise error_at(job_path, ("data", "path") if job.data.path else ("data",), f"data.path: {fault}")
    return data


def prompts_to_plan(job: Job, job_path: str | Path, paths: JobPaths) -> int:
    """How many prompts a plan of the job may count on: the rows of its data, or `data.prompts` where it is not here.

    `paths`: as from `job_paths(job, job_path)`. Raises InputError as `enough_prompts` does, and when `data.prompts` is
    not the number of rows of the file.
    """
    stated = job.data.prompts
    if paths.data is None:
        assert stated is not None, "job_paths has refused a job without data"
        return stated
    rows = enough_prompts(job, paths.data)
    if stated is not None and stated != rows:
        raise error_at(job_path, ("data", "prompts"), f"data.prompts: {other_count(job, rows)}")
    return rows


def other_count(job: Job, rows: int) -> str:
    """What is wrong with a `data.prompts` that is not the `rows` of the data file, and what to do."""
    return f"is {job.data.prompts}, and '{job.data.path}' has {rows} rows; write {rows}, or remove data.prompts"


def _row(line: str, path: str, number: int) -> Prompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not valid JSON: {error.msg} at column {error.colno}; each line holds one whole JSON object", path, number
        ) from None
    except RecursionError:
        raise InputError("JSON nested too deeply; flatten the row", path, number) from None
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
