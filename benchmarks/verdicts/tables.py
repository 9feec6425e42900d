"""The three tables of cases, and what is wrong of them. Cases of code are judged in real sandboxes.

A line of that table (`tests/verdicts/code.jsonl`): `case`, its name; `source`; `row`, with the keys that data have;
`response`; `expect`, a reward or "refused". Where they matter: `packages` that the job states, `partial` rewards,
`deadline_s`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rlplan.executor.rewards.kinds.code_reward import CodeReward
from rlplan.executor.rewards.kinds.math_reward import judge
from rlplan.executor.rewards.sandbox.verdict import PolicyError, RowError
from rlplan.plans.answers.code_tests import answer_of_row
from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.model_shape import architecture_from_config, tp_divides
from rlplan.plans.facts.public_models import Architecture

from . import read_cases

DEADLINE_S = 20.0
"""Far above what any case takes that is to end, also on a busy machine."""


def judged(case: dict[str, Any]) -> tuple[float | str, str]:
    """What the reward says of a case: its value or "refused", and why."""
    reward = CodeReward(
        case.get("deadline_s", DEADLINE_S),
        packages=tuple(case.get("packages", ())),
        partial=case.get("partial", False),
    )
    try:
        verdict = reward.judge("", case["response"], answer_of_row(case["row"]))
    except RowError as error:
        return "refused", str(error)
    return verdict.reward, verdict.why


def wrong_code_cases() -> tuple[int, list[str]]:
    """The number of cases, and a line for each that is judged otherwise than it must be."""
    cases = read_cases("code")
    wrong = []
    for case in cases:
        value, why = judged(case)
        if value != case["expect"]:
            wrong.append(f"{case['case']}: {value} where {case['expect']} is right ({why or 'no reason given'})")
    return len(cases), wrong


# The mathematics reward against a table of answers, responses and right verdicts: `tests/verdicts/math.jsonl`.


def wrong_math_cases() -> tuple[int, list[str]]:
    """The number of cases, and a line for each whose verdict is wrong: the case, what is right, what came out."""
    lines = read_cases("math")
    wrong = []
    for line in lines:
        expected, got = line["expect"], _verdict(line["response"], line["answer"])
        if got != expected:
            wrong.append(
                f"{line['case']}: answer {line['answer']!r}, response {line['response']!r}: {got}, not {expected}"
            )
    return len(lines), wrong


def _verdict(response: str, answer: object) -> float | str:
    try:
        return judge("", response, answer).reward
    except RowError:
        return "refused"
    except PolicyError as error:
        return f"an error ({error})"


# Shapes of public models against what is published of them: `tests/verdicts/models.jsonl`.
#
# A row has a `config` (keys of the model's config.json) and what is published, or a name alone: `alike` another
# model's, or `known`: `guessed` or `unknown`. Parameters must be within 1 % of the published number, or half a unit
# of its last digit where it is rounded; active ones within a unit, with or without the embeddings, as publishers
# differ in what they count.

TOLERANCE, VALUE_BYTES = 0.01, 2
SIZES = (1, 2, 4, 8)


def wrong_model_cases() -> tuple[int, list[str]]:
    """The number of cases, and a line for each thing that is wrong of one."""
    rows = read_cases("models")
    return len(rows), [f"{row['model']}: {what}" for row in rows for what in _wrong(row)]


def _wrong(row: dict[str, Any]) -> Iterator[str]:
    named = architecture_of(row["model"])
    if "config" in row:
        yield from (
            f"by its config.json: {text}" for text in _differences(architecture_from_config(row["config"]), row)
        )
    if "known" in row:
        found = "unknown" if named is None else "guessed" if named.guessed else f"known as {named.name}"
        if found != row["known"]:
            yield f"is {found}, not {row['known']}"
    elif named is None or named.guessed:
        yield "by its name: is not known"
    elif "alike" in row:
        other = architecture_of(row["alike"])
        if other is None or replace(named, name=other.name) != other:
            yield f"is {named.name}, not of the shape of {row['alike']}"
    else:
        yield from (f"by its name: {text}" for text in _differences(named, row))


def _differences(a: Architecture, row: dict[str, Any]) -> Iterator[str]:
    if not _near(a.parameters, row["parameters"]):
        yield f"{a.parameters:,} parameters, not {row['parameters']:,.0f}"
    embedding = a.vocab * a.hidden
    counted = [a.active_parameters + more * embedding for more in (-1, 0, 1)]
    if "active" in row and not any(_near(count, row["active"], 1.0) for count in counted):
        yield f"{a.active_parameters:,} active parameters, not {row['active']:,.0f}"
    if [a.heads, a.kv_heads] != row["heads"]:
        yield f"{a.heads} heads, {a.kv_heads} of keys and values, not {row['heads']}"
    if VALUE_BYTES * a.kv_values_per_token != row["kv_bytes"]:
        yield f"{VALUE_BYTES * a.kv_values_per_token:,} bytes of KV a token, not {row['kv_bytes']:,}"
    sizes = [tp for tp in SIZES if tp_divides(tp, a)]
    if sizes != row["tp"]:
        yield f"is offered tp {sizes}, not {row['tp']}"


def _near(count: float, published: float, units: float = 0.5) -> bool:
    digits = f"{published:.12e}".split("e")[0].replace(".", "").rstrip("0")
    unit = 10.0 ** (len(str(int(published))) - len(digits))
    return abs(count - published) <= max(TOLERANCE * published, units * unit)
