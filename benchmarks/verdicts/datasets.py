"""Three data sets of fifty rows in the forms of APPS, HumanEval and KodCode, each row with a solution (`reference`).

    python -m benchmarks.verdicts.datasets FOLDER [--kind apps] [--seed 0]

`write(folder, kind)` writes data.jsonl and job.yaml, which `rlplan rewards audit` takes. The rows come from the tasks
below: one function each, with a number in it that the seed draws, and inputs that it draws. Two rows may have one task,
with different numbers; the inputs are drawn anew until the two functions differ on them, so that no row's solution is
right for another row. What a test wants is what the row's solution gives; that it is right is for the audit to show.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.yaml_io import dump

from ..entry import run

Kind = Literal["apps", "humaneval", "kodcode"]
KINDS: tuple[Kind, ...] = ("apps", "humaneval", "kodcode")
ROWS, CASES = 50, 6

Draw = Callable[[random.Random], tuple[Any, ...]]


@dataclass(frozen=True)
class Task:
    """A function to write.

    Attributes:
        name: of the function.
        asks: what it is to return; {k} is the row's number.
        arguments: their names, as in the source.
        body: the lines of the function, after its signature; {k} is the row's number.
        numbers: what {k} is drawn from.
        draw: arguments of one call.
        refuses: arguments for which it must raise ValueError, or None.
    """

    name: str
    asks: str
    arguments: str
    body: str
    numbers: tuple[int, ...]
    draw: Draw
    refuses: str | None = None

    def source(self, k: int) -> str:
        """The function."""
        lines = self.body.format(k=k).splitlines()
        return "\n".join([f"def {self.name}({self.arguments}):", *(f"    {line}" for line in lines)]) + "\n"

    def function(self, k: int) -> Callable[..., Any]:
        """The function, to call."""
        names: dict[str, Any] = {}
        exec(self.source(k), names)
        made: Callable[..., Any] = names[self.name]
        return made


def _ints(least: int, most: int) -> Draw:
    return lambda rng: ([rng.randint(-20, 30) for _ in range(rng.randint(least, most))],)


def _int(least: int, most: int) -> Draw:
    return lambda rng: (rng.randint(least, most),)


def _pair(least: int, most: int) -> Draw:
    return lambda rng: (rng.randint(least, most), rng.randint(least, most))


def _letters(rng: random.Random, least: int, most: int) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(least, most)))


def _word(rng: random.Random) -> tuple[str]:
    return (_letters(rng, 6, 14),)


def _words(rng: random.Random) -> tuple[list[str]]:
    return ([_letters(rng, 1, 8) for _ in range(rng.randint(6, 9))],)


FEW = (2, 3, 4)
TASKS = (
    Task("scaled_sum", "the sum of the numbers, times {k}", "values", "return {k} * sum(values)", FEW, _ints(3, 9)),
    Task("count_above", "how many numbers are above {k}", "values",
         "return sum(1 for value in values if value > {k})", (0, 5, 10), _ints(8, 14)),
    Task("every_kth", "every {k}th number, from the first on", "values", "return values[::{k}]", FEW, _ints(5, 12)),
    Task("rotated", "the numbers, rotated to the left by {k}", "values",
         "cut = {k} % len(values)\nreturn values[cut:] + values[:cut]", FEW, _ints(6, 11)),
    Task("clipped", "the numbers, none below -{k} and none above {k}", "values",
         "return [max(-{k}, min({k}, value)) for value in values]", (3, 7, 12), _ints(5, 9)),
    Task("kth_largest", "the number at place {k} of the numbers in falling order; ValueError if there are fewer",
         "values", "if len(values) < {k}:\n    raise ValueError('too few numbers')\n"
         "return sorted(values, reverse=True)[{k} - 1]", FEW, _ints(6, 10), "[1]"),
    Task("pairs_dividing", "how many pairs of places have a sum that {k} divides", "values",
         "found = 0\nfor at, first in enumerate(values):\n"
         "    found += sum((first + second) % {k} == 0 for second in values[at + 1 :])\nreturn found",
         (2, 3, 5), _ints(7, 12)),
    Task("best_window", "the largest sum of {k} neighbours; ValueError if there are fewer numbers", "values",
         "if len(values) < {k}:\n    raise ValueError('too few numbers')\n"
         "return max(sum(values[at : at + {k}]) for at in range(len(values) - {k} + 1))", FEW, _ints(7, 12), "[]"),
    Task("digit_powers", "the sum of the digits of n, each to the power of {k}", "n",
         "return sum(int(digit) ** {k} for digit in str(n))", FEW, _int(100, 99999)),
    Task("multiples", "how many numbers from 1 to n are divided by {k} or by 7", "n",
         "return sum(1 for i in range(1, n + 1) if i % {k} == 0 or i % 7 == 0)", (3, 4, 5), _int(20, 300)),
    Task("in_base", "n written in base {k}", "n",
         "digits = ''\nwhile n:\n    digits = str(n % {k}) + digits\n    n //= {k}\nreturn digits or '0'",
         (2, 3, 5), _int(10, 4000)),
    Task("shrinks", "how often n can be divided by {k}, rounded down, until it is 0", "n",
         "times = 0\nwhile n > 0:\n    n //= {k}\n    times += 1\nreturn times", FEW, _int(50, 100000)),
    Task("shifted", "the word, each letter moved on by {k} in the alphabet, z followed by a", "word",
         "return ''.join(chr((ord(letter) - 97 + {k}) % 26 + 97) for letter in word)", (3, 7, 13), _word),
    Task("stretched", "the word, each letter {k} times", "word",
         "return ''.join(letter * {k} for letter in word)", FEW, _word),
    Task("in_pieces", "the word in pieces of {k} letters, joined by hyphens", "word",
         "return '-'.join(word[at : at + {k}] for at in range(0, len(word), {k}))", FEW, _word),
    Task("blocks_reversed", "the word, each block of {k} letters reversed", "word",
         "return ''.join(word[at : at + {k}][::-1] for at in range(0, len(word), {k}))", FEW, _word),
    Task("checksum", "the sum of the letters' places in the alphabet, times {k}, modulo 97", "word",
         "return {k} * sum(ord(letter) - 96 for letter in word) % 97", (3, 5, 11), _word),
    Task("count_long", "how many words have more than {k} letters", "words",
         "return sum(len(word) > {k} for word in words)", FEW, _words),
    Task("initials", "the first {k} letters of each word", "words",
         "return [word[:{k}] for word in words]", FEW, _words),
    Task("word_at", "the word at place {k} of the words by length, then by alphabet; ValueError if there are fewer",
         "words", "if len(words) < {k}:\n    raise ValueError('too few words')\n"
         "return sorted(words, key=lambda word: (len(word), word))[{k} - 1]", FEW, _words, "[]"),
    Task("power_rest", "what is left of a to the power of b, divided by {k}", "a, b",
         "return pow(a, b, {k})", (7, 11, 13), _pair(2, 40)),
    Task("far_apart", "whether a and b differ by more than {k}", "a, b",
         "return abs(a - b) > {k}", (3, 6, 9), _pair(0, 16)),
    Task("climbs", "in how many ways one can climb n stairs with steps of 1 to {k}", "n",
         "ways = [1]\nfor at in range(1, n + 1):\n    ways.append(sum(ways[max(0, at - {k}) : at]))\nreturn ways[n]",
         FEW, _int(4, 18)),
    Task("common_scaled", "the greatest common divisor of a and b, times {k}; ValueError if one is 0", "a, b",
         "if a == 0 or b == 0:\n    raise ValueError('zero')\nwhile b:\n    a, b = b, a % b\nreturn {k} * a",
         FEW, _pair(4, 120), "0, 3"),
    Task("longest_calm", "the length of the longest run of neighbours that differ by at most {k}", "values",
         "best = now = 1\nfor last, value in zip(values, values[1:]):\n"
         "    now = now + 1 if abs(value - last) <= {k} else 1\n    best = max(best, now)\nreturn best",
         (6, 12, 18), _ints(8, 16)),
    Task("averages", "the mean of each {k} neighbours", "values",
         "return [sum(values[at : at + {k}]) / {k} for at in range(len(values) - {k} + 1)]", FEW, _ints(6, 10)),
    Task("mean_part", "the mean of the numbers, divided by {k}; ValueError if there are none", "values",
         "if not values:\n    raise ValueError('no numbers')\nreturn sum(values) / len(values) / {k}",
         (3, 6, 7), _ints(3, 9), "[]"),
    Task("remainders", "the sum of the numbers that leave 1 if divided by {k}", "values",
         "return sum(value for value in values if value % {k} == 1)", FEW, _ints(8, 14)),
)  # fmt: skip


def rows(kind: Kind, seed: int = 0) -> list[dict[str, Any]]:
    """The rows of a data set."""
    return [_RENDERED[kind](f"{kind}-{at:02}", drawn, random.Random(f"{seed}/{kind}/{at}"))
            for at, drawn in enumerate(_drawn(seed))]  # fmt: skip


def write(folder: Path, kind: Kind, seed: int = 0) -> None:
    """Write data.jsonl and job.yaml into the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows(kind, seed)]
    (folder / "data.jsonl").write_text("".join(lines), encoding="utf-8")
    reward: dict[str, Any] = {"kind": "code", "deadline_s": 10.0}
    if kind == "kodcode":
        reward["packages"] = ["numpy", "pytest"]
    job = {
        "rlplan_job": 1,
        "name": kind,
        "model": {"path": "model", "dtype": "float32"},
        "data": {"path": "data.jsonl", "seed": seed},
        "reward": reward,
        "rollout": {
            "prompts_per_step": 8,
            "samples_per_prompt": 4,
            "max_prompt_tokens": 512,
            "max_response_tokens": 1024,
            "temperature": 1.0,
        },
        "algorithm": {"name": "grpo", "learning_rate": 1e-6, "seed": seed},
        "search": {"tp": [1], "micro_batch_tokens": [4096]},
    }
    dump(Job.model_validate(job), folder / "job.yaml")


@dataclass(frozen=True)
class _Drawn:
    """A task with its number, and calls with their results."""

    task: Task
    k: int
    calls: list[tuple[tuple[Any, ...], Any]]

    @property
    def asks(self) -> str:
        """What the function is to return."""
        return self.task.asks.format(k=self.k)

    @property
    def source(self) -> str:
        """The solution."""
        return self.task.source(self.k)


def _drawn(seed: int) -> Iterator[_Drawn]:
    rng = random.Random(seed)
    numbers = {task.name: rng.sample(task.numbers, 2) for task in TASKS}
    order = [(task, 0) for task in TASKS] + [(task, 1) for task in rng.sample(TASKS, ROWS - len(TASKS))]
    for task, which in order:
        k, other = numbers[task.name][which], numbers[task.name][1 - which]
        right, wrong = task.function(k), task.function(other)
        while True:
            drawn = [task.draw(rng) for _ in range(CASES)]
            results = [right(*given) for given in drawn]
            # Neither the same task with another number nor any constant may be right.
            if len({repr(each) for each in results}) > 1 and results != [wrong(*given) for given in drawn]:
                break
        yield _Drawn(task, k, list(zip(drawn, results, strict=True)))


# ---- programs on standard input ----


def _apps(row: str, drawn: _Drawn, rng: random.Random) -> dict[str, Any]:
    """A row with inputs and outputs; its solution reads them in one of three ways."""
    first = drawn.calls[0][0]
    names = [name.strip() for name in drawn.task.arguments.split(",")]
    shapes = [_shape(name, value) for name, value in zip(names, first, strict=True)]
    floats = any(isinstance(each, float) for each in _flat(drawn.calls[0][1]))
    main = [read for _, read in shapes] + [f"result = {drawn.task.name}({drawn.task.arguments})", *_printing(drawn)]
    program = rng.choice((_plain, _guarded, _by_lines))(drawn.source, main)
    answer: dict[str, Any] = {
        "inputs": ["".join(_typed(value) for value in given) for given, _ in drawn.calls],
        "outputs": [_printed(result) for _, result in drawn.calls],
    }
    if floats:
        answer["tolerance"] = 1e-6
    asked = "; then ".join(text for text, _ in shapes)
    prompt = f"Write a Python program that reads {asked}, and prints {drawn.asks.partition(';')[0]}. "
    prompt += "Numbers and words of a list are printed in one line; a truth value as YES or NO."
    return {"id": row, "prompt": prompt, "answer": answer if rng.random() < 0.5 else json.dumps(answer),
            "reference": program}  # fmt: skip


def _shape(name: str, value: Any) -> tuple[str, str]:
    """What the prompt says of an argument, and how a program reads it."""
    if isinstance(value, list) and isinstance(value[0], str):
        return "words in one line", f"{name} = input().split()"
    if isinstance(value, list):
        return "how many numbers there are, and in the next line the numbers", (
            f"count = int(input())\n{name} = list(map(int, input().split()))[:count]"
        )
    if isinstance(value, str):
        return "a word", f"{name} = input().strip()"
    return f"the number {name} in a line", f"{name} = int(input())"


def _typed(value: Any) -> str:
    if isinstance(value, list):
        count = "" if isinstance(value[0], str) else f"{len(value)}\n"
        return count + " ".join(map(str, value)) + "\n"
    return f"{value}\n"


def _flat(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _printing(drawn: _Drawn) -> list[str]:
    result = drawn.calls[0][1]
    if isinstance(result, bool):
        return ["print('YES' if result else 'NO')"]
    return ["print(*result)"] if isinstance(result, list) else ["print(result)"]


def _printed(result: Any) -> str:
    if isinstance(result, bool):
        return "YES\n" if result else "NO\n"
    return " ".join(f"{each:.9f}" if isinstance(each, float) else str(each) for each in _flat(result)) + "\n"


def _plain(source: str, main: list[str]) -> str:
    return source + "\n\n" + "\n".join(main) + "\n"


def _guarded(source: str, main: list[str]) -> str:
    lines = [f"    {line}" for part in main for line in part.splitlines()]
    return f"{source}\n\ndef main():\n" + "\n".join(lines) + "\n\n\nif __name__ == '__main__':\n    main()\n"


def _by_lines(source: str, main: list[str]) -> str:
    return "import sys\n\ninput = sys.stdin.readline\n\n\n" + _plain(source, main)


# ---- check(candidate) ----


def _humaneval(row: str, drawn: _Drawn, rng: random.Random) -> dict[str, Any]:
    """A row with a prompt that begins the function, and `check(candidate)`."""
    signature = f"def {drawn.task.name}({drawn.task.arguments}):"
    given, result = drawn.calls[0]
    example = f"    >>> {drawn.task.name}({_arguments(given)})\n    {result!r}\n"
    head = f'{signature}\n    """Return {drawn.asks}.\n\n{example}    """\n'
    checks = [f"    assert {_claim('candidate', given, result)}" for given, result in drawn.calls]
    if drawn.task.refuses is not None:
        checks += ["    try:", f"        candidate({drawn.task.refuses})", "        assert False, 'no error'",
                   "    except ValueError:", "        pass"]  # fmt: skip
    test = "METADATA = {'author': 'rlplan'}\n\n\ndef check(candidate):\n" + "\n".join(checks) + "\n"
    body = drawn.source.partition("\n")[2]
    return {"id": row, "prompt": f"Complete this function.\n\n{head}", "answer": test, "entry_point": drawn.task.name,
            "reference": head + body if rng.random() < 0.5 else drawn.source}  # fmt: skip


def _arguments(given: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, given))


def _claim(name: str, given: tuple[Any, ...], result: Any) -> str:
    call = f"{name}({_arguments(given)})"
    if isinstance(result, float):
        return f"abs({call} - {result!r}) < 1e-9"
    if any(isinstance(each, float) for each in _flat(result)):
        return f"all(abs(a - b) < 1e-9 for a, b in zip({call}, {result!r}, strict=True))"
    return f"{call} == {result!r}"


# ---- tests that import from solution ----


def _kodcode(row: str, drawn: _Drawn, rng: random.Random) -> dict[str, Any]:
    """A row with pytest's tests; some use parametrize, raises, approx, a class or numpy."""
    name, floats = drawn.task.name, any(isinstance(each, float) for each in _flat(drawn.calls[0][1]))
    numbers = isinstance(drawn.calls[0][1], list) and not isinstance(drawn.calls[0][1][0], str)
    lines: list[str] = []
    packages: list[str] = []
    if numbers and (floats or rng.random() < 0.7):
        packages.append("import numpy as np")
        for at, (given, result) in enumerate(drawn.calls):
            lines += [f"def test_{at}():", f"    made = np.array({name}({_arguments(given)}))",
                      f"    np.testing.assert_allclose(made, np.array({result!r}), rtol=1e-9)", "", ""]  # fmt: skip
    elif floats or rng.random() < 0.5:
        packages.append("import pytest")
        wanted = "pytest.approx(wanted)" if floats else "wanted"
        cases = ", ".join(f"(({_arguments(given)},), {result!r})" for given, result in drawn.calls)
        lines += [f"@pytest.mark.parametrize('given, wanted', [{cases}])", "def test_calls(given, wanted):",
                  f"    assert {name}(*given) == {wanted}", "", ""]  # fmt: skip
    elif rng.random() < 0.4:
        lines += [f"class Test{name.title().replace('_', '')}:"]
        for at, (given, result) in enumerate(drawn.calls):
            lines += [f"    def test_{at}(self):", f"        assert {_claim(name, given, result)}", ""]
        lines += [""]
    else:
        for at, (given, result) in enumerate(drawn.calls):
            lines += [f"def test_{at}():", f"    assert {_claim(name, given, result)}", "", ""]
    if drawn.task.refuses is not None:
        packages.append("import pytest")
        lines += ["def test_error():", "    with pytest.raises(ValueError):",
                  f"        {name}({drawn.task.refuses})", "", ""]  # fmt: skip
    heads = [*sorted(set(packages)), f"from solution import {name}"]
    test = "\n".join([*heads, "", "", *lines]).rstrip() + "\n"
    prompt = f"Write a Python function `{name}({drawn.task.arguments})` that returns {drawn.asks}."
    return {"id": row, "prompt": prompt, "answer": test, "reference": drawn.source}


_RENDERED = {"apps": _apps, "humaneval": _humaneval, "kodcode": _kodcode}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(KINDS), default="apps", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(folder: Path, kind: Kind, seed: int) -> None:
    """Write a data set of one form, and its job.yaml."""
    write(folder, kind, seed)


if __name__ == "__main__":
    run(main)
