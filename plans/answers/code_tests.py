"""The form of a row's tests of code: a script, `check(candidate)`, calls with results, a program's input and output.

| form | the row's answer |
|---|---|
| script | Python source, or a list of it, with at least one test: assertions that run, what pytest would collect |
| check | HumanEval's `def check(candidate)`, with the key `entry_point` in the answer or beside it |
| calls | a function, its arguments and results: `{"fn_name": …, "inputs": […], "outputs": […]}`, or a list of cases |
| stdin | what a program reads and writes: `{"inputs": […], "outputs": […]}`, or a list of `{"input": …, "output": …}` |

Objects may stand as JSON text. The keys are those of APPS, TACO, LiveCodeBench, CodeContests, PRIME and MBPP.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import textwrap
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from . import AnswerError
from .script_facts import ScriptFacts, script_facts

_ENTRY = ("entry_point", "fn_name", "func_name", "function_name")
_INPUTS = ("inputs", "input", "stdin")
_OUTPUTS = ("outputs", "output", "expected_output", "expected_outputs", "stdout")
_SETUP = ("test_imports", "test_setup_code", "import_prefix")
_LIMITS = ("time_limit", "memory_limit", "memory_limit_bytes", "tolerance", "abs_tol", "rel_tol")
_HOLDERS = (
    "tests", "test", "test_list", "test_cases", "unit_tests", "assert_case", "input_output", "public_test_cases",
    "private_test_cases", "public_tests", "private_tests", "generated_tests", "verification_info", "ground_truth",
    "functional", "test_code", "official_tests",
)  # fmt: skip
"""Keys under which an object has its tests."""
_CHECKERS = ("checker", "generated_checker", "special_judge")
_FILES = ("input_file", "output_file", "input_mode")
_STDIN_TYPES, _CALL_TYPES = (
    ("stdin", "stdin_stdout", "stdio", "standard_input"),
    ("functional", "function_call", "call_based"),
)
_FORMS = "Python tests, inputs and outputs, or calls with results (docs/rewards.md)"
_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3}
_BYTES = {
    "": 1 << 20, "b": 1, "bytes": 1, "kb": 1 << 10, "kilobytes": 1 << 10, "kib": 1 << 10, "mb": 1 << 20, "mib": 1 << 20,
    "megabytes": 1 << 20, "megabyte": 1 << 20, "gb": 1 << 30, "gib": 1 << 30, "gigabytes": 1 << 30,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One call, or one run of a program.

    Attributes:
        given: the text of standard input; of a call its arguments, a list, or an object by name.
        wanted: the text of standard output; of a call its result, a JSON value.
        time_s: seconds that the case may take, by the row; None: the job's deadline alone.
        memory_bytes: memory that the case may take, by the row; None: the job's alone.
    """

    given: Any
    wanted: Any
    time_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class CodeTests:
    """A row's tests.

    Attributes:
        form: how they are run.
        needs: names that they use of the response.
        packages: top-level modules beyond the standard library that they import, without `solution`.
        source: Python source of a script or check.
        script: what its text says of it; None of calls and stdin.
        entry: the function to check or call; "" if the tests name it themselves.
        cases: of calls and stdin.
        tolerance: (absolute, relative) difference of numbers that counts as none, by the row; None: numbers are text.
    """

    form: Literal["script", "check", "calls", "stdin"]
    needs: frozenset[str]
    packages: frozenset[str] = frozenset()
    source: str = ""
    script: ScriptFacts | None = None
    entry: str = ""
    cases: tuple[Case, ...] = ()
    tolerance: tuple[float, float] | None = None

    @property
    def reads_stdin(self) -> bool:
        """Whether the response is a program that reads standard input."""
        return self.form == "stdin"


def answer_of_row(row: dict[str, Any]) -> Any:
    """The answer of a row of kind code with what the row's further keys say of its tests: the function's name, lists of
    tests, imports, limits. An answer without such keys beside it is returned as it is; one that is Python without a
    test, a solution, gives way to tests under another key."""
    answer = row.get("answer")
    if any(row.get(key) for key in _HOLDERS) and isinstance(answer, str) and not _has_tests(answer):
        answer = None
    keys = (*_ENTRY, *_SETUP, *_LIMITS, *_CHECKERS, *_FILES, "test_list", "metadata", *(() if answer else _HOLDERS))
    more = {key: row[key] for key in keys if row.get(key) not in (None, "", [], {})}
    if set(more) == {"metadata"} and not any(key in _object(more["metadata"]) for key in _ENTRY):
        more = {}
    if not more:
        return answer
    given = _object(answer)
    if given:
        return {**more, **given}
    return {**more, "tests": answer} if answer else more


def _has_tests(text: str) -> bool:
    try:
        facts = script_facts(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _data(text) is not None
    return not facts.problem or facts.candidates != ()


def code_tests(answer: Any) -> CodeTests:
    """Recognise a row's tests. Raises `AnswerError` for those of no known form, without a test, or that no response can
    be judged by."""
    try:
        text = json.dumps(answer)
    except (TypeError, ValueError) as error:
        raise AnswerError(f"the answer is no JSON value ({error}); write {_FORMS}") from None
    return _read(text)


@lru_cache(maxsize=256)
def _read(text: str) -> CodeTests:
    known: dict[str, Any] = {}
    scripts: list[str] = []
    cases: list[dict[str, Any]] = []
    _gather(json.loads(text), known, scripts, cases)
    entry = known.get("entry", "")
    if scripts and cases:
        raise AnswerError("the answer has Python tests and inputs with outputs; write one of the two")
    if scripts:
        return _script("\n".join([*known.get("setup", []), *scripts]), entry)
    if not cases and known.get("empty"):
        raise AnswerError("the answer has no inputs and outputs; write at least one of each")
    if not cases:
        raise AnswerError(f"the answer has no test; write {_FORMS}")
    kinds = {_kind(case, entry) for case in cases}
    if len(kinds) > 1:
        raise AnswerError("the answer has cases of standard input and of function calls; write one of the two")
    if kinds == {"stdin"}:
        made = tuple(Case(_lines(each["given"]), _lines(each["wanted"]), *each["limits"]) for each in cases)
        return CodeTests("stdin", frozenset(), cases=made, tolerance=_tolerance(known))
    names = {each["entry"] or entry for each in cases}
    if len(names) > 1 or not all(names):
        raise AnswerError("the cases are calls, and the row does not name the one function; add the key fn_name")
    (name,) = names
    made = tuple(Case(_arguments(each["given"]), _result(each), *each["limits"]) for each in cases)
    return CodeTests("calls", _names_of(name), entry=name, cases=made, tolerance=_tolerance(known))


def _gather(value: Any, known: dict[str, Any], scripts: list[str], cases: list[dict[str, Any]]) -> None:
    """Add what a value holds to the scripts and cases found so far."""
    if isinstance(value, str):
        if value[:1] == '"':  # JSON text that was written as JSON once more
            with contextlib.suppress(ValueError):
                value = str(json.loads(value))
        data = _data(value)
        if re.fullmatch(r"[A-Za-z0-9+/]{80,}=*\s*", value):
            raise AnswerError(
                "the tests are packed (base64, as LiveCodeBench's private ones); unpack them to JSON first"
            )
        if data is None:
            scripts.append(value)
        else:
            _gather(data, known, scripts, cases)
    elif isinstance(value, list) and value and all(isinstance(each, (str, dict)) for each in value):
        for each in value:
            _gather(each, known, scripts, cases)
    elif isinstance(value, dict):
        _gather_object(value, known, scripts, cases)
    else:
        shown = json.dumps(value)
        raise AnswerError(f"the answer {shown[:40]} has no test in it; write {_FORMS}")


def _gather_object(
    value: dict[str, Any], known: dict[str, Any], scripts: list[str], cases: list[dict[str, Any]]
) -> None:
    for key in _CHECKERS:
        if value.get(key):
            raise AnswerError(f"the row's outputs are judged by a program of their own ({key}), which is not run here; "
                              "remove the row, or write its check as Python tests")  # fmt: skip
    files = [value[key] for key in _FILES if value.get(key) not in (None, "", "stdio", "stdin", "stdout")]
    if files:
        raise AnswerError(f"the row's programs read or write a file ({str(files[0])[:40]}) in place of standard input "
                          "and output, which no case here has; remove the row")  # fmt: skip
    language = value.get("language")
    if isinstance(language, str) and not language.lower().startswith("py"):
        raise AnswerError(f"the row's language is {language}; only Python is run")
    own = {**_object(value.get("metadata")), **value}
    entry = next((own[key] for key in _ENTRY if own.get(key)), "")
    if not isinstance(entry, str):
        raise AnswerError(f"the function's name is {json.dumps(entry)[:40]}; write it as text")
    known.update({key: value[key] for key in _LIMITS if value.get(key) is not None})
    known["setup"] = known.get("setup", []) + [_text(value[key]) for key in _SETUP if value.get(key)]
    inputs = next((key for key in _INPUTS if key in value), None)
    outputs = next((key for key in _OUTPUTS if key in value), None)
    if inputs is None and outputs is None:
        if entry:
            known["entry"] = entry
        # Beside tests that name their function, LeetCodeDataset has what they were made of, as text.
        told = {"input_output"} if entry and value.get("test") else set()
        keys = [key for key in _HOLDERS if value.get(key) not in (None, "", [], {}, "[]", "{}") and key not in told]
        held = [value[key] for key in keys]
        held = [each for each in held if not _is_empty(each)] or held
        if not held:
            found = ", ".join(sorted(value)[:6]) or "nothing"
            raise AnswerError(f"the answer is an object without tests (it has {found}); write {_FORMS}")
        for each in held:
            _gather(each, known, scripts, cases)
        return
    if inputs is None or outputs is None:
        raise AnswerError(f"the answer has {inputs or outputs} and no {'outputs' if inputs else 'inputs'}; write both")
    given, wanted = value[inputs], value[outputs]
    kind = str(own.get("testtype") or own.get("type") or "")
    limits = _case_limits(known)
    several = inputs == "inputs" or (kind == "" and not entry and isinstance(given, list) and isinstance(wanted, list))
    pairs = [(given, wanted)]
    if isinstance(given, str) and isinstance(wanted, str) and several:
        lists = _data(given), _data(wanted)
        several = all(isinstance(each, list) for each in lists)
        given, wanted = lists if several else (given, wanted)
    if several:
        if not isinstance(given, list) or not isinstance(wanted, list):
            raise AnswerError(f"{inputs} and {outputs} must be lists of the same length")
        if len(given) != len(wanted):
            raise AnswerError(
                f"the answer has {len(given)} inputs and {len(wanted)} outputs; write one output for each"
            )
        known["empty"] = known.get("empty") or not given  # one of several groups of cases may be (CodeContests)
        pairs = list(zip(given, wanted, strict=True))
    cases += [{"given": g, "wanted": w, "entry": entry, "kind": kind, "limits": limits} for g, w in pairs]


def _kind(case: dict[str, Any], entry: str) -> str:
    if case["kind"] in _STDIN_TYPES or case["kind"] in _CALL_TYPES:
        return "stdin" if case["kind"] in _STDIN_TYPES else "calls"
    return "calls" if case["entry"] or entry else "stdin"


# ---- scripts ----


def _script(source: str, entry: str) -> CodeTests:
    source = textwrap.dedent(source.removeprefix("\ufeff"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python will refuse one day
            facts = script_facts(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        told = error.msg if isinstance(error, SyntaxError) else str(error)
        raise AnswerError(f"the tests are no Python ({told}{line}); mend them, or write {_FORMS}") from None
    if facts.candidates and not entry:
        raise AnswerError(
            f"its tests are a {facts.candidates[0]}(candidate), and nothing names the function to check; "
            "add the key entry_point"
        )
    if facts.problem:
        raise AnswerError(facts.problem)
    entries = _names_of(entry) if entry else frozenset()
    needs = facts.needs | entries
    if not needs:
        raise AnswerError(
            "the tests use nothing of the response; have them call its function, or import it from solution"
        )
    if entries & facts.defines:
        raise AnswerError(
            f"the tests define {sorted(entries)[0]} themselves, so the response's is never called; remove it"
        )
    form: Literal["check", "script"] = "check" if facts.candidates else "script"
    return CodeTests(form, needs, facts.packages, source, facts, entry)


def _names_of(entry: str) -> frozenset[str]:
    """The response's name in `f`, `Solution().f` or `Solution.f`. Raises `AnswerError` if it is none of them."""
    if not re.fullmatch(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*)?", entry):
        raise AnswerError(f"the function to test is called {entry[:60]!r}; write a name, or Class().method")
    return frozenset({re.split(r"\W", entry)[0]})


# ---- values ----


def _data(text: str) -> Any:
    """The list or object that a text writes as JSON, or as Python does; None if it is something else, as `[1], [2]`."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    with contextlib.suppress(ValueError):
        return _literal(text, (list, dict))
    return None


def _literal(text: str, types: tuple[type, ...] = (object,)) -> Any:
    """The value that a text writes as JSON, or as Python does, as JSON has it. Raises `ValueError` for another text,
    and for a value of none of these types."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            value = read(text.strip())
            if isinstance(value, types):
                return json.loads(json.dumps(value))
            break
    raise ValueError(text)


def _object(value: Any) -> dict[str, Any]:
    data = _data(value) if isinstance(value, str) else value
    return data if isinstance(data, dict) else {}


def _is_empty(value: Any) -> bool:
    """Whether an object has lists of inputs and outputs and nothing in them, as CodeContests' private tests may."""
    return isinstance(value, dict) and value != {} and all(each == [] for each in value.values())


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(value: Any) -> str:
    """What a program reads or writes: text, or its lines."""
    if isinstance(value, list) and all(isinstance(each, (str, int, float)) for each in value):
        return "\n".join(str(each).removesuffix("\n") for each in value) + "\n"
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise AnswerError(
        f"input and output of a program are text, not {json.dumps(value)[:40]}; if these are arguments and results of "
        "a function, add the key fn_name"
    )


def _arguments(value: Any) -> Any:
    """Arguments of a call: a list, an object by name, or text with one JSON value a line."""
    if isinstance(value, str):
        return [_argument(line) for line in value.strip().splitlines()]
    return value if isinstance(value, (list, dict)) else [value]


def _argument(line: str) -> Any:
    try:
        return _literal(line)
    except ValueError:
        fault = f"an argument is {line.strip()[:40]!r}, which is no JSON; write one JSON value a line"
        raise AnswerError(fault) from None


def _result(case: dict[str, Any]) -> Any:
    """The result of a call; of a case whose arguments are lines of JSON, the text of its result is JSON too."""
    value = case["wanted"]
    if isinstance(value, str) and isinstance(case["given"], str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


# ---- limits ----


def _case_limits(known: dict[str, Any]) -> tuple[float | None, int | None]:
    time_s = _quantity(known.get("time_limit"), "time_limit", _SECONDS, "seconds, such as 2 or '2 seconds'")
    memory = _quantity(known.get("memory_limit"), "memory_limit", _BYTES, "megabytes, such as 256 or '256 MB'")
    exact = known.get("memory_limit_bytes")  # 0 stands for none in CodeContests
    if exact:
        memory = _quantity(exact, "memory_limit_bytes", {"": 1}, "bytes")
    return time_s, None if memory is None else int(memory)


def _quantity(value: Any, key: str, units: dict[str, Any], write: str) -> float | None:
    if isinstance(value, dict) and key == "time_limit" and "seconds" in value:
        value = float(value["seconds"] or 0) + float(value.get("nanos") or 0) / 1e9
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)(?: per test)?\s*", value)
        if found and found[2].lower() in units:
            value = float(found[1]) * (units[found[2].lower()] / units[""])
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise AnswerError(f"{key} is {json.dumps(value)[:40]}; write {write}")
    return float(value * units[""])


def _tolerance(known: dict[str, Any]) -> tuple[float, float] | None:
    both = known.get("tolerance")
    found = (known.get("abs_tol", both), known.get("rel_tol", both))
    if found == (None, None):
        return None
    for each in found:
        right = isinstance(each, (int, float)) and not isinstance(each, bool) and 0 <= each < math.inf
        if each is not None and not right:
            raise AnswerError(f"the tolerance is {json.dumps(each)[:40]}; write a number from 0 on, such as 1e-6")
    return float(found[0] or 0), float(found[1] or 0)
