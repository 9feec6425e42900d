"""One row of the data as a prompt: its keys are used, refused where nothing here can use them, or ignored."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..answers import AnswerError
from ..answers.code_tests import answer_of_row, code_tests
from ..answers.gold_math import gold_of
from ..answers.packages import unstated
from ..schema.job import RewardKind
from ..schema.rollout_spec import OF_THE_TEMPLATE

Messages = list[dict[str, str]]


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
        judged: whether the answer was read as the reward will, if it will; false for an expression where math-verify is
            not installed, or where it is not asked.
        line: of the file, counted from 1; the number of the row in Parquet; 0: not of a file.
        sources: the row's `data_source` and the name of its set, which parts of a reward may name.
    """

    id: str
    prompt: str | Messages
    answer: Any
    reference: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    judged: bool = True
    line: int = field(default=0, compare=False)
    sources: tuple[str, ...] = field(default=(), compare=False)


class RowRefused(Exception):
    """A row cannot be used: what is wrong; what to do."""


def sources_of(value: Any, name: str | None) -> tuple[str, ...]:
    """The `data_source` of a row, where it has one as text, and the name of its set."""
    said = value.get("data_source") if isinstance(value, dict) else None
    return tuple(each for each in (said, name) if isinstance(each, str) and each)


def id_of(value: Any) -> str | None:
    """The id of a row, if it can be told, whatever else is wrong with the row."""
    name = _with_keys_of_verl(value).get("id") if isinstance(value, dict) else None
    return name if isinstance(name, str) and name.strip() else None


def _with_keys_of_verl(row: dict[str, Any]) -> dict[str, Any]:
    """The row with id and answer, if it has none, from where verl's files have them."""
    found = {**row}
    for key, place, name in (("answer", "reward_model", "ground_truth"), ("id", "extra_info", "index")):
        nested = row.get(place)
        if key not in row and isinstance(nested, dict) and nested.get(name) is not None:
            found[key] = str(nested[name]) if key == "id" else nested[name]
    return found


def _with_known_keys(value: Any, kinds: list[RewardKind]) -> dict[str, Any]:
    """The row with id, prompt and answer. Raises Refused where one is missing; tests of code may stand under the keys
    of other data sets, which `answer_of_row` knows."""
    if not isinstance(value, dict):
        raise RowRefused("must be a JSON object with id, prompt and answer")
    row = _with_keys_of_verl(value)
    if "code" in kinds and "answer" not in row and answer_of_row(row):
        row["answer"] = None
    missing = [key for key in _OTHER_NAMES if key not in row]
    if missing:
        renamed = {key: other for key in missing for other in reversed(_OTHER_NAMES[key]) if other in row}
        todo = " and ".join(f"rename '{other}' to {key}" for key, other in renamed.items())
        named = ", ".join(f"'{key}'" for key in missing)
        keys = "keys" if len(missing) > 1 else "key"
        raise RowRefused(f"missing {keys} {named}; {todo or 'each row has id, prompt and answer'}")
    return row


_OTHER_NAMES = {
    "id": ("uid", "task_id", "question_id", "problem_id", "unique_id", "uuid", "idx", "index"),
    "prompt": ("messages", "question", "problem", "instruction", "query", "input"),
    "answer": (
        "ground_truth", "final_answer", "expected_answer", "gold", "label", "target", "tests", "test", "test_list",
        "input_output", "test_cases", "solution",
    ),
}  # fmt: skip
"""By key: what other data sets call it, the likeliest first."""


def prompt_of(value: Any, kinds: list[RewardKind]) -> Prompt:
    """The JSON value of a row as a prompt. Raises Refused."""
    row = _with_known_keys(value, kinds)
    name, prompt = row["id"], row["prompt"]
    if not isinstance(name, str):
        raise RowRefused(f"id must be text, not {str(name)[:80]}; put it in quotes")
    if not name.strip():
        raise RowRefused("id is blank; give each row its own")
    if (fault := _prompt_fault(prompt)) is not None:
        raise RowRefused(fault)
    if isinstance(prompt, list):
        prompt = [{"role": message["role"], "content": message["content"]} for message in prompt]
    for key in sorted(_REFUSED.keys() & row.keys()):
        if _is_given(row[key]):
            raise RowRefused(f"key '{key}' {_REFUSED[key]}")
    used = [key for key in ("system", *_TEMPLATE_KEYS) if _is_given(row.get(key))]
    if used and isinstance(prompt, str):
        raise RowRefused(
            f"key '{used[0]}' is for a prompt of chat messages, and this prompt is text, which is sent as it is; write "
            "the prompt as messages, or remove the key"
        )
    if "system" in used:
        prompt = _with_system(row["system"], prompt)
    return Prompt(name, prompt, _answer(row, kinds), _reference(row, prompt), _template(row, used))


_FORM = 'prompt must be text or a list of {"role": …, "content": …} with text in both'
_ROLES = ("system", "developer", "user", "assistant", "tool")


def _prompt_fault(prompt: Any) -> str | None:
    """What is wrong with a prompt, and what to do; None if nothing."""
    if isinstance(prompt, str):
        if re.match(r'\s*\[\s*\{\s*"(?:role|content)"\s*:', prompt):
            return "prompt is text that holds messages as JSON, and would be sent as it is; write the list itself"
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


def _with_system(system: Any, prompt: Messages) -> Messages:
    if not isinstance(system, str):
        raise RowRefused("system must be text; write it so, or as the prompt's first message")
    if prompt[0]["role"] in ("system", "developer"):
        if prompt[0]["content"] == system:
            return prompt
        raise RowRefused("key 'system' is beside a prompt that has a system message; keep one of the two")
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
                raise RowRefused(f"{key} is text that is no JSON; write it as JSON") from None
        if key == "chat_template_kwargs":
            if not isinstance(value, dict):
                raise RowRefused(f"{key} must be an object; write the template's variables, such as enable_thinking")
            own = next((name for name in value if name in OF_THE_TEMPLATE), None)
            if own is not None:
                raise RowRefused(f"{key} has '{own}', which is no variable of its own there; remove it")
            found |= {name: each for name, each in value.items() if each is not None}
        elif not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise RowRefused(f"{key} must be a list of objects; write it so, or remove it")
        else:
            found[key] = value
    return found


_NEEDS = {
    "math": "compares each response with it",
    "code": "runs it as the tests that a response has to pass",
}


def _answer(row: dict[str, Any], kinds: list[RewardKind]) -> Any:
    """The row's answer, with what the tests of code need of its further keys."""
    answer = answer_of_row(row) if "code" in kinds else row["answer"]
    kind = next((kind for kind in kinds if kind in _NEEDS), None)
    if kind is not None and (answer in (None, "", [], {}) or (isinstance(answer, str) and not answer.strip())):
        raise RowRefused(f"answer is empty, and reward.kind {kind} {_NEEDS[kind]}; write it")
    if not _is_finite(answer):
        raise RowRefused("answer holds NaN or Infinity, which are no JSON numbers; write a number, or drop the row")
    return answer


def _is_finite(value: Any) -> bool:
    waiting = [value]  # JSON may be nested as deeply as Python calls
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            return False
        if isinstance(each, dict | list):
            waiting += each.values() if isinstance(each, dict) else each
    return True


_PLAIN_NUMBER = re.compile(r"-?\d{1,100}(\.\d{1,100})?")


def is_read(answer: Any, kind: RewardKind, packages: tuple[str, ...], whole: bool) -> bool:
    """Read an answer as that part of the reward will; false if only math-verify could, and it is not asked or not
    installed. Raises AnswerError for an answer that no response could be scored against."""
    if kind == "math" and isinstance(answer, int | str) and _PLAIN_NUMBER.fullmatch(str(answer)):
        return True  # most are, and files have many
    try:
        if kind == "code" and (fault := unstated(code_tests(answer), packages)):
            raise AnswerError(fault)
        return kind != "math" or gold_of(answer, whole).kind != "unread"
    except (AnswerError, MemoryError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:80]
        raise AnswerError(f"the answer cannot be read ({why}); write it otherwise, or drop the row") from error


def _reference(row: dict[str, Any], prompt: str | Messages) -> str | None:
    """The row's own solution: the first under a key that has one."""
    for key in ("reference", "reference_solution", "solution", "solutions", "canonical_solution"):
        value = row.get(key)
        if isinstance(value, str) and value.lstrip()[:1] == "[" and key == "solutions":  # APPS: a list as text
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, dict):  # CodeContests: lists of languages, of which 3 is Python, and of solutions
            both = [value.get("language"), value.get("solution")]
            pairs = zip(*both, strict=False) if all(isinstance(each, list) for each in both) else ()
            value = next((each for language, each in pairs if language in (3, "PYTHON3")), None)
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
    begin = re.search(r"^(?:(?:from|import|def|async def|class) |@)", code, re.MULTILINE)
    return f"{code[begin.start() if begin else 0 :].rstrip()}\n{body}"
