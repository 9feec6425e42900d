"""Read the prompts: rows with `id`, `prompt` and `answer`, as the reward will read them.

A row's answer is taken with those of its further keys that the tests of code need (`answer_of_row`) and read by its
form (`code_tests`, `gold_of`), so that a row that no response could be scored against is refused by its line before
anything starts. Further keys that change a prompt are used, or refused where nothing here can use them; all others
(`source`, `level`, …) are ignored. docs/running.md has the list.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..phrases.numbers import count
from ..schema.job import Job, JobPaths, RewardKind, RewardSpec, job_paths, missing_files
from ..schema.limits import DATA_BYTES
from ..yaml.errors import InputError, joined
from ..yaml.yaml_io import error_at
from .row_files import PARQUET_MAGIC, decoded, json_rows, parquet_rows, unpacked

Messages = list[dict[str, str]]

Judged = Literal["all", "fast", "no"]
"""Which answers are read as the reward will: `all`; `fast`: those that need no math-verify, which takes a second to
begin and milliseconds for an expression; `no`: none, where the file was read so before."""


@dataclass(frozen=True)
class Prompt:
    """One row.

    Attributes:
        id: unique in the file.
        prompt: text, or chat messages as dicts with `role` and `content`; a row's `system` is the first of them.
        answer: what the reward compares a response with; any JSON value.
        reference: the row's own solution, which must get the full reward; None without one. Code may be bare.
        template: what the chat template gets beside the messages: `tools`, `documents`, and the row's
            `chat_template_kwargs`.
        judged: whether the answer was read as the reward will; false for an expression where math-verify is not
            installed, or where it is not asked.
        line: of the file, counted from 1; the number of the row in Parquet; 0: not of a file.
    """

    id: str
    prompt: str | Messages
    answer: Any
    reference: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    judged: bool = True
    line: int = 0


@dataclass(frozen=True)
class RowFault:
    """A row that is refused.

    Attributes:
        line: of the file, counted from 1; the number of the row in Parquet.
        id: None where the row has none that can be read.
        message: what is wrong; what to do.
    """

    line: int
    id: str | None
    message: str

    def error(self, path: str | Path) -> InputError:
        """The fault as an error of the file at `path`."""
        return InputError(self.text, str(path), self.line)

    @property
    def text(self) -> str:
        """The message with the row's id, on one line."""
        what, then, remedy = " ".join(self.message.split()).partition("; ")
        named = "" if self.id is None or f"'{self.id}'" in what else f" (id '{self.id[:80]}')"
        return f"{what}{named}{then}{remedy}"


MOST_FAULTS = 20
"""The most rows whose faults are listed; the number of further rows with faults is only counted."""

Progress = Callable[[str, float], None]
"""Told what is being read and the share that is done."""


def _untold(text: str, done: float) -> None:
    return


def read_rows(
    path: str | Path, reward: RewardSpec | RewardKind = "function", judged: Judged = "all", progress: Progress = _untold
) -> tuple[list[Prompt], list[RowFault]]:
    """(the good rows in file order, the faults of the others); a row has one fault at most.

    Args:
        reward: of the job, or its only kind. `math` and `code` compare a response with the row's answer, so the answer
            must not be empty, and must be one that they can read; a reward function gets any answer, also null.
        judged: which answers are read as the reward will.

    Raises InputError for a missing or unreadable file, a table (CSV), and a file without rows.
    """
    kinds = [reward] if isinstance(reward, str) else [part.kind for part in reward.parts]
    rows, faults = list[Prompt](), list[RowFault]()
    first_line: dict[str, int] = {}
    values = list(_values(path))
    for index, (line, value) in enumerate(values):
        if index % 512 == 0:
            progress(f"{index} of {len(values)} rows", index / len(values))
        values[index] = (line, None)  # freed as it is read: files may be large
        name = value.get("id") if isinstance(value, dict) else None
        try:
            if isinstance(value, ValueError):
                raise _Refused(f"{value}{'' if '; ' in str(value) else _WHOLE_LINES}")
            row = _with_known_keys(value, kinds)
            name = _id(row)
            prompt = _prompt(row, name, kinds, judged)
            if name in first_line:
                raise _Refused(f"id '{name}' is also in line {first_line[name]}; give each row its own")
        except _Refused as refused:
            faults.append(RowFault(line, name if isinstance(name, str) and name.strip() else None, str(refused)))
            continue
        first_line[name] = line
        rows.append(replace(prompt, line=line))
    return rows, faults


def read_prompts(
    path: str | Path, reward: RewardSpec | RewardKind = "function", judged: Judged = "all", progress: Progress = _untold
) -> list[Prompt]:
    """The rows in file order, as `read_rows`. Raises InputError as it does, and with a line for each bad row."""
    rows, faults = read_rows(path, reward, judged, progress)
    if not faults:
        return rows
    left = len(faults) - MOST_FAULTS
    errors = [fault.error(path) for fault in faults[:MOST_FAULTS]]
    if left > 0:
        rest = f"{left} further rows have faults, {len(faults)} of {len(rows) + len(faults)} in all"
        errors.append(InputError(f"{rest}; rlplan check JOB --json lists them all by line and id", str(path)))
    raise joined(errors)


def _values(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(line, value or JsonError) of each row of a file."""
    data = unpacked(path, DATA_BYTES)
    empty = True
    if data[:4] == PARQUET_MAGIC:
        for number, row in parquet_rows(data, path):
            # Columns of ids are often whole numbers; JSON's would be quoted.
            named = isinstance(row.get("id"), int) and not isinstance(row["id"], bool)
            yield number, {**row, "id": str(row["id"])} if named else row
            empty = False
    else:
        for line, value in json_rows(decoded(data, path)):
            if empty and isinstance(value, ValueError) and (header := _header(data, line)):
                raise InputError(
                    f"is a table and not JSONL; write each row as {_SHAPE} on a line of its own", str(path), header
                )
            yield line, value
            empty = False
    if empty:
        raise InputError(f"has no rows; write one {_SHAPE} a line", str(path))


def _header(data: bytes, line: int) -> int | None:
    """The line, if it is the header of a table: column names with commas or tabs between them."""
    text = data.split(b"\n", line)[line - 1].decode(errors="replace").lstrip("\ufeff")
    columns = [column.strip().strip('"') for column in re.split("[,;\t]", text)]
    names = len(columns) > 1 and all(re.fullmatch(r"[A-Za-z_][\w .-]*", column) for column in columns)
    return line if names else None


def enough_prompts(job: Job, data: str | Path, judged: Judged = "all", progress: Progress = _untold) -> int:
    """The number of prompts in the job's data file.

    Raises InputError as `read_prompts` does, and if there are fewer prompts than a step trains: the prompts of a step
    must all be different.
    """
    rows, needed = len(read_prompts(data, job.reward, judged, progress)), job.rollout.prompts_per_step
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
    rows = enough_prompts(job, paths.data, "fast")
    if stated is not None and stated != rows:
        raise error_at(job_path, ("data", "prompts"), f"data.prompts: {other_count(job, rows)}")
    return rows


def other_count(job: Job, rows: int) -> str:
    """The message for a `data.prompts` that differs from the number of `rows` of the data file."""
    return f"is {job.data.prompts}, and '{job.data.path}' has {rows} rows; write {rows}, or remove data.prompts"


_WHOLE_LINES = "; each line holds one whole JSON object"
_SHAPE = '{"id": …, "prompt": …, "answer": …}'


class _Refused(Exception):
    """A row cannot be used: what is wrong; what to do."""


def _with_known_keys(value: Any, kinds: list[RewardKind]) -> dict[str, Any]:
    """The row with id, prompt and answer. Raises _Refused where they are neither there nor where verl's files have
    them; tests of code may stand under the keys of other data sets, which `answer_of_row` knows."""
    if not isinstance(value, dict):
        raise _Refused("must be a JSON object with id, prompt and answer")
    row: dict[str, Any] = {**value}
    for key, place, name in (("answer", "reward_model", "ground_truth"), ("id", "extra_info", "index")):
        nested = row.get(place)
        if key not in row and isinstance(nested, dict) and nested.get(name) is not None:
            row[key] = str(nested[name]) if key == "id" else nested[name]
    if "code" in kinds and "answer" not in row and _answer_of_row(row):
        row["answer"] = None
    missing = [key for key in _OTHER_NAMES if key not in row]
    if missing:
        renamed = {key: other for key in missing for other in reversed(_OTHER_NAMES[key]) if other in row}
        todo = " and ".join(f"rename '{other}' to {key}" for key, other in renamed.items())
        named = ", ".join(f"'{key}'" for key in missing)
        keys = "keys" if len(missing) > 1 else "key"
        raise _Refused(f"missing {keys} {named}; {todo or 'each row has id, prompt and answer'}")
    return row


def _answer_of_row(row: dict[str, Any]) -> Any:
    from ..answers.code_tests import answer_of_row

    return answer_of_row(row)


_OTHER_NAMES = {
    "id": ("uid", "task_id", "question_id", "problem_id", "unique_id", "uuid", "idx", "index"),
    "prompt": ("messages", "question", "problem", "instruction", "query", "input"),
    "answer": (
        "ground_truth", "final_answer", "expected_answer", "gold", "label", "target", "tests", "test", "test_list",
        "input_output", "test_cases", "solution",
    ),
}  # fmt: skip
"""By key: what other data sets call it, the likeliest first."""


def _id(row: dict[str, Any]) -> str:
    name = row["id"]
    if not isinstance(name, str):
        raise _Refused(f"id must be text, not {str(name)[:80]}; put it in quotes")
    if not name.strip():
        raise _Refused("id is blank; give each row its own")
    return name


def _prompt(row: dict[str, Any], name: str, kinds: list[RewardKind], judged: Judged) -> Prompt:
    """The row as a prompt. Raises _Refused."""
    prompt = row["prompt"]
    if (fault := _prompt_fault(prompt)) is not None:
        raise _Refused(fault)
    if isinstance(prompt, list):
        prompt = [{"role": message["role"], "content": message["content"]} for message in prompt]
    for key, why in _REFUSED.items():
        if _is_given(row.get(key)):
            raise _Refused(f"key '{key}' {why}")
    used = [key for key in ("system", *_TEMPLATE_KEYS) if _is_given(row.get(key))]
    if used and isinstance(prompt, str):
        raise _Refused(
            f"key '{used[0]}' is for a prompt of chat messages, and this prompt is text, which is sent as it is; write "
            "the prompt as messages, or remove the key"
        )
    if "system" in used:
        prompt = _with_system(row["system"], prompt)
    template = _template(row, used)
    answer = _answer(row, kinds)
    return Prompt(name, prompt, answer, _reference(row, prompt), template, _judged(answer, kinds, judged))


_FORM = 'prompt must be text or a list of {"role": …, "content": …} with text in both'
_ROLES = ("system", "developer", "user", "assistant", "tool")


def _prompt_fault(prompt: Any) -> str | None:
    """What is wrong with a prompt, and what to do; None if nothing."""
    if isinstance(prompt, str):
        return None if prompt.strip() else "prompt is blank; write it, or drop the row" if prompt else _FORM
    if not isinstance(prompt, list) or not prompt:
        return _FORM
    for number, message in enumerate(prompt, 1):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            return _FORM
        # In a file of columns each message has all keys, and null where it has no value.
        further = [key for key in message if key not in ("role", "content") and _is_given(message[key])]
        if further:
            return f"{_FORM}, and message {number} has '{further[0]}' as well; drop the row"
        role, content = message["role"], message["content"]
        if not isinstance(role, str) or not isinstance(content, str):
            return f"{_FORM}, and message {number} has other values; write text, or drop the row"
        if role not in _ROLES:
            return f"message {number} has the role '{role[:40]}'; write one of {', '.join(_ROLES)}"
        # An empty system message keeps a template from adding its own.
        if not content.strip() and role not in ("system", "developer"):
            return f"message {number}, of role {role}, is blank; write it, or drop the row"
    if prompt[-1]["role"] == "assistant":
        return "the last message is the assistant's, which the response would follow; end with the user's, or drop it"
    if not any(message["role"] in ("user", "tool") for message in prompt):
        return "no message is the user's; write the task as one of role user"
    return None


def _is_given(value: Any) -> bool:
    """Whether a key says something: in files of columns each row has all keys."""
    return value is not None and value is not False and value not in ("", [], {})


_READS_TEXT = "is no text, and policies here read text alone; drop the row"
_REFUSED = {
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), _READS_TEXT),
    "functions": "is not read; write them as tools, a list of JSON schemas",
    "tool_choice": "is not read: a chat template cannot force a tool; remove it",
    "system_prompt": "is not read; rename it to system",
    "messages": "is a second prompt; keep one of the two, as prompt",
    "conversations": "is a second prompt; keep one of the two, as prompt",
    **dict.fromkeys(
        ("prefill", "assistant_prefix", "assistant_prefill", "response_prefix"),
        "would begin the response, and is not read; write it at the end of a prompt of text, or remove it",
    ),
    **dict.fromkeys(
        ("sampling_params", "stop", "stop_token_ids"),
        "would change how this row is sampled, and all rows are sampled as the job's rollout says; remove it",
    ),
    "chat_template": "is not read: the template is the model's; put it into the model's folder",
}
"""Keys that would change a prompt and that nothing here reads: why, and what to do."""

_TEMPLATE_KEYS = ("tools", "documents", "chat_template_kwargs")
_OF_THE_TEMPLATE = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize")


def _with_system(system: Any, prompt: Messages) -> Messages:
    if not isinstance(system, str):
        raise _Refused("system must be text; write it so, or as the prompt's first message")
    if prompt[0]["role"] in ("system", "developer"):
        if prompt[0]["content"] == system:
            return prompt
        raise _Refused("key 'system' is beside a prompt that has a system message; keep one of the two")
    return [{"role": "system", "content": system}, *prompt]


def _template(row: dict[str, Any], used: list[str]) -> dict[str, Any]:
    """What the chat template gets beside the messages."""
    found: dict[str, Any] = {}
    for key in (key for key in _TEMPLATE_KEYS if key in used):
        value = row[key]
        if isinstance(value, str):  # tools have schemas of many shapes, so files of columns hold them as text
            try:
                value = json.loads(value)
            except ValueError:
                raise _Refused(f"{key} is text that is no JSON; write it as JSON") from None
        if key == "chat_template_kwargs":
            if not isinstance(value, dict):
                raise _Refused(f"{key} must be an object; write the template's variables, such as enable_thinking")
            own = next((name for name in value if name in _OF_THE_TEMPLATE), None)
            if own is not None:
                raise _Refused(f"{key} has '{own}', which is no variable of its own there; remove it")
            found |= {name: each for name, each in value.items() if each is not None}
        elif not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise _Refused(f"{key} must be a list of objects; write it so, or remove it")
        else:
            found[key] = value
    return found


_NEEDS = {
    "math": "compares each response with it",
    "code": "runs it as the tests that a response has to pass",
}


def _answer(row: dict[str, Any], kinds: list[RewardKind]) -> Any:
    """The row's answer, with what the tests of code need of its further keys."""
    answer = _answer_of_row(row) if "code" in kinds else row["answer"]
    kind = next((kind for kind in kinds if kind in _NEEDS), None)
    if kind is not None and (answer in (None, "", [], {}) or (isinstance(answer, str) and not answer.strip())):
        raise _Refused(f"answer is empty, and reward.kind {kind} {_NEEDS[kind]}; write it")
    if not _is_finite(answer):
        raise _Refused("answer holds NaN or Infinity, which are no JSON numbers; write a number, or drop the row")
    return answer


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list) or all(map(_is_finite, value))


def _judged(answer: Any, kinds: list[RewardKind], judged: Judged) -> bool:
    """Read an answer as the reward will; false if it was not. Raises _Refused for one that it cannot read."""
    from ..answers import AnswerError

    try:
        if "code" in kinds and judged != "no":
            from ..answers.code_tests import code_tests

            code_tests(answer)
    except AnswerError as error:
        raise _Refused(str(error)) from None
    return True


def _reference(row: dict[str, Any], prompt: str | Messages) -> str | None:
    """The row's own solution: the first under a key that has one."""
    for key in ("reference", "reference_solution", "solution", "solutions", "canonical_solution"):
        value = row.get(key)
        if isinstance(value, str) and value.lstrip()[:1] == "[" and key == "solutions":  # APPS: a list as text
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, list):
            value = next(iter(value), None)
        if isinstance(value, str) and value.strip():
            return _whole(value, prompt) if key == "canonical_solution" else value
    return None


def _whole(body: str, prompt: str | Messages) -> str:
    """HumanEval's solution with the code that it goes on with: a body, which is indented, is none without."""
    first = next(line for line in body.splitlines() if line.strip())
    if first[:1] not in " \t":
        return body
    asked = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", asked, re.DOTALL | re.MULTILINE)
    code = blocks[-1] if blocks else asked
    return f"{code.rstrip()}\n{body}"
