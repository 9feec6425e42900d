"""Read the prompts: JSONL, one object a row with `id`, `prompt` and `answer`. Further keys of a row are ignored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..phrases.numbers import count
from ..schema.job import Job, JobPaths, RewardKind, job_paths, missing_files
from ..schema.limits import DATA_BYTES
from ..yaml.errors import InputError, joined
from ..yaml.input_files import read_text
from ..yaml.json_text import parse_json
from ..yaml.yaml_io import error_at


@dataclass(frozen=True)
class Prompt:
    """One row.

    Attributes:
        id: unique in the file.
        prompt: text, or chat messages as dicts with `role` and `content`.
        answer: what the reward compares a response with; any JSON value.
    """

    id: str
    prompt: str | list[dict[str, str]]
    answer: Any


MOST_FAULTS = 20
"""The most rows whose faults are listed; the number of further rows with faults is only counted."""


def read_prompts(path: str | Path, kind: RewardKind = "function") -> list[Prompt]:
    """The rows in file order; empty lines are skipped.

    Args:
        kind: of the job's reward. `math` and `code` compare a response with the row's answer, so the answer must not be
            empty; a reward function gets any answer, also null.

    Raises InputError with a line for each bad row: one that is no JSON object, lacks a key, has a prompt that is
    neither text nor messages, lacks the answer that the reward needs, or repeats an id. Without a line: a missing file,
    a file without rows.
    """
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    faults: list[InputError] = []
    # Not splitlines(): that also breaks at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(read_text(path, DATA_BYTES).split("\n"), 1):
        if not line.strip():
            continue
        if not prompts and not faults and _is_table(line):
            raise InputError(
                f"is a table and not JSONL; write each row as {_SHAPE} on a line of its own", str(path), number
            )
        try:
            prompt = _row(line, str(path), number, kind)
        except InputError as error:
            faults.append(error)
            continue
        if prompt.id in first_line:
            message = f"id '{prompt.id}' is also in line {first_line[prompt.id]}; give each row its own"
            faults.append(InputError(message, str(path), number))
            continue
        first_line[prompt.id] = number
        prompts.append(prompt)
    if faults:
        left = len(faults) - MOST_FAULTS
        rest = [InputError(f"{left} further rows have faults; mend these first", str(path))] if left > 0 else []
        raise joined([*faults[:MOST_FAULTS], *rest])
    if not prompts:
        raise InputError(f"has no rows; write one {_SHAPE} a line", str(path))
    return prompts


def _is_table(line: str) -> bool:
    """Whether the file's first line is the header of a table: column names with commas or tabs between them."""
    columns = [column.strip().strip('"') for column in re.split("[,;\t]", line)]
    return len(columns) > 1 and all(re.fullmatch(r"[A-Za-z_][\w .-]*", column) for column in columns)


def enough_prompts(job: Job, data: str | Path) -> int:
    """The number of prompts in the job's data file.

    Raises InputError as `read_prompts` does, and if there are fewer prompts than a step trains: the prompts of a step
    must all be different.
    """
    rows, needed = len(read_prompts(data, job.reward.answer_kind)), job.rollout.prompts_per_step
    if rows < needed:
        raise InputError(
            f"has {count(rows, 'prompt')}, and a step trains {needed} different ones (rollout.prompts_per_step); add "
            "rows, or lower that",
            str(data),
        )
    return rows


def data_file(job: Job, job_path: str | Path) -> Path:
    """Absolute path of the job's prompts, for measuring and training. Raises InputError if the file is missing."""
    data = job_paths(job, job_path).data
    if data is None:
        fault = dict(missing_files(job, job_path, to_train=True))["data", "path"]
        raise error_at(job_path, ("data", "path") if job.data.path else ("data",), f"data.path: {fault}")
    return data


def prompts_to_plan(job: Job, job_path: str | Path, paths: JobPaths) -> int:
    """The number of prompts to plan with: the rows of the data file, or `data.prompts` if there is no file here.

    `paths`: from `job_paths(job, job_path)`. Raises InputError as `enough_prompts` does, and if `data.prompts` differs
    from the number of rows of the file.
    """
    stated = job.data.prompts
    if paths.data is None:
        assert stated is not None, "job_paths refuses a job without data"
        return stated
    rows = enough_prompts(job, paths.data)
    if stated is not None and stated != rows:
        raise error_at(job_path, ("data", "prompts"), f"data.prompts: {other_count(job, rows)}")
    return rows


def other_count(job: Job, rows: int) -> str:
    """The message for a `data.prompts` that differs from the number of `rows` of the data file."""
    return f"is {job.data.prompts}, and '{job.data.path}' has {rows} rows; write {rows}, or remove data.prompts"


_SHAPE = '{"id": …, "prompt": …, "answer": …}'


def _row(line: str, path: str, number: int, kind: RewardKind) -> Prompt:
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
    if kind in _NEEDS and row["answer"] in (None, "", [], {}):
        raise InputError(f"answer is empty, and reward.kind {kind} {_NEEDS[kind]}; write it", path, number)
    return Prompt(row["id"], row["prompt"], row["answer"])


_NEEDS = {
    "math": "compares each response with it",
    "code": "runs it as the tests that a response has to pass",
}


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
