"""Documents that somebody broke and command lines that somebody mistyped, by chance: every command answers.

`make search` tries ten thousand of them.
"""

import contextlib
import copy
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.cli.schema import model_of
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from .command_line import rlplan
from .conftest import EXAMPLES

PLANS = {"plan": "math-32b.yaml", "groups": "groups.yaml"}
INPUTS = {
    **dict.fromkeys([f"math-32b/{kind}.yaml" for kind in ("job", "cluster", "profile")], "math-32b.yaml"),
    **dict.fromkeys([f"groups/{kind}.yaml" for kind in ("workload", "cluster")], "groups.yaml"),
}
"""Other documents, each with a plan that was solved for it."""

TIMES = 1 if settings.default.derandomize else 10
"""`make search` looks ten times as long as the suite's searches."""

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 10**6, 10**18, 10**40, 0.0, -0.0, 0.5, 1.0, 1e-300, 1e300, -1e300, float("inf"),
    float("nan"), "", " ", "x", "none", "1", "exact", "race", "g1", "main", "\x1b[31m", "é\u2028", "a" * 3000, [], {},
    [1], [[]], {"p50": 1.0}, {"mean": 0.0, "p50": 0.0, "p95": 0.0}, [0.0] * 21,
]  # fmt: skip


def nodes(value: Any, loc: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*loc, key)
        yield from nodes(item, (*loc, key))


def holder(value: Any, loc: tuple[Any, ...]) -> Any:
    for key in loc[:-1]:
        value = value[key]
    return value


@st.composite
def mutations(draw: st.DrawFn, file: str) -> str:
    """The text of a shipped document with up to four nodes deleted, replaced, scaled, copied elsewhere or renamed."""
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    value = yaml.safe_load(text)
    for _ in range(draw(st.integers(1, 4))):
        places = list(nodes(value))
        if not places:  # the last node is gone
            break
        loc = draw(st.sampled_from(places))
        parent, key = holder(value, loc), loc[-1]
        how = draw(st.sampled_from(["delete", "replace", "scale", "scale", "copy", "rename", "double"]))
        if how == "delete":
            del parent[key]
        elif how == "replace":
            parent[key] = copy.deepcopy(draw(st.sampled_from(ODD)))  # later changes must not reach ODD itself
        elif how == "scale" and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            factor = draw(st.sampled_from([0, -1, 0.5, 2, 3, 10, 1e6, 1e-6]))
            scaled = parent[key] * factor
            parent[key] = round(scaled) if isinstance(parent[key], int) else scaled
        elif how == "copy":
            other = draw(st.sampled_from(places))
            with contextlib.suppress(KeyError, IndexError, TypeError):
                parent[key] = copy.deepcopy(holder(value, other)[other[-1]])
        elif how == "rename" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["x", "long", "short", "job", "rlplan", "g1", "g2", ""]))] = parent.pop(key)
        elif how == "double" and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
    result: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10**6)
    if draw(st.integers(0, 9)) == 0:  # torn
        result = result[: draw(st.integers(0, len(result)))]
    return result


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    """No command asks the Hugging Face hub for a mistyped model: without a network it would try for a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs and plans as they ship, beside which the broken one lies."""
    home = tmp_path_factory.mktemp("mutations")
    skipped = shutil.ignore_patterns("cpu-demo*", ".rlplan")
    return shutil.copytree(EXAMPLES, home, ignore=skipped, dirs_exist_ok=True)


def answered(folder: Path, kind: str, text: str) -> None:
    broken, whole = folder / "broken.yaml", folder / PLANS[kind]
    broken.write_text(text, encoding="utf-8")
    try:
        loaded = loads(text, model_of(kind))
    except InputError as error:
        loaded = None
        assert "\n" not in str(error)
    sides = (whole, broken) if len(text) % 2 else (broken, whole)
    diff = ("diff", *sides, "--exit-code", *(["--markdown"] if len(text) % 3 else []))
    codes = [rlplan(*command).returncode for command in (("check", broken), diff, ("show", broken))]
    if loaded is None:
        assert codes == [2, 2, 2]
        return
    assert codes[0] in (0, 1) and codes[1] in (0, 1) and codes[2] == 0, codes
    written = dump(loaded)
    assert loads(written, type(loaded)) == loaded and dump(loads(written, type(loaded))) == written


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
ANY = st.sampled_from(sorted(PLANS)).flatmap(lambda kind: st.tuples(st.just(kind), mutations(PLANS[kind])))


@settings(relaxed, max_examples=12)
@given(ANY)
def test_some_broken_plans_are_answered_by_every_command(folder, broken):
    answered(folder, *broken)


@pytest.mark.search
@settings(relaxed, max_examples=300 * TIMES)
@given(ANY)
def test_any_broken_plan_is_answered_by_every_command(folder, broken):
    answered(folder, *broken)


def input_answered(folder: Path, file: str, text: str) -> None:
    whole = (EXAMPLES / file).read_text(encoding="utf-8")
    (folder / file).write_text(text, encoding="utf-8")
    try:
        for command in (("check", folder / file), ("check", folder / INPUTS[file])):
            result = rlplan(*command)
            assert result.returncode in (0, 1, 2) and "Traceback" not in result.stdout + result.stderr, result
    finally:
        (folder / file).write_text(whole, encoding="utf-8")


ANY_INPUT = st.sampled_from(sorted(INPUTS)).flatmap(lambda file: st.tuples(st.just(file), mutations(file)))


@settings(relaxed, max_examples=10)
@given(ANY_INPUT)
def test_some_broken_inputs_are_answered(folder, broken):
    input_answered(folder, *broken)


@pytest.mark.search
@settings(relaxed, max_examples=300 * TIMES)
@given(ANY_INPUT)
def test_any_broken_input_is_answered(folder, broken):
    input_answered(folder, *broken)


ENDLESS = ("execute", "profile", "watch", "apply")  # they train, serve, or wait for a run
WORDS = [
    "", "-", "--", "x", "0", "-1", "1", "3", "1e400", "nan", "\x7f", "é", "exact", "a" * 300, ".", "..", "/", "none",
    "math-32b.yaml", "groups.yaml", "math-32b/job.yaml", "math-32b/cluster.yaml", "math-32b/profile.yaml",
    "math-32b/lengths.jsonl", "groups/workload.yaml", "no.yaml", "8x8xH100", "0x0xH100", "Qwen2.5-32B", "math", "{}",
]  # fmt: skip


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its options, and words that may fit none of them."""
    from rlplan.cli.main import cli

    context = click.Context(cli)
    name = draw(st.sampled_from(sorted(set(cli.list_commands(context)) - set(ENDLESS))))
    command, line = cli.get_command(context, name), [name]
    while isinstance(command, click.Group) and command.commands:
        line.append(draw(st.sampled_from(sorted(command.commands))))
        command = command.commands[line[-1]]
    assert command is not None
    options = [option for option in command.params if isinstance(option, click.Option)]
    for _ in range(draw(st.integers(0, 4))):
        if options and draw(st.booleans()):
            option = draw(st.sampled_from(options))
            line.append(draw(st.sampled_from(option.opts)))
            if option.is_flag and draw(st.integers(0, 5)):
                continue
            if isinstance(option.type, click.Choice) and draw(st.booleans()):
                line.append(str(draw(st.sampled_from(list(option.type.choices)))))
                continue
        line.append(draw(st.sampled_from(WORDS)))
    return line


def line_answered(home: Path, line: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=home) as folder:
        copied = shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("cpu-demo*"), dirs_exist_ok=True)
        result = rlplan(*line, folder=copied)
    assert result.returncode in (0, 1, 2, 3) and "Traceback" not in result.stdout + result.stderr, result


@settings(relaxed, max_examples=15)
@given(command_lines())
def test_some_mistyped_command_lines_are_answered(folder, line):
    line_answered(folder, line)


@pytest.mark.search
@settings(relaxed, max_examples=100 if TIMES == 1 else 4000)  # a few take half a minute
@given(command_lines())
def test_any_mistyped_command_line_is_answered(folder, line):
    line_answered(folder, line)


@settings(relaxed, max_examples=20)
@given(content=st.binary(max_size=200))
def test_bytes_that_are_no_document_are_bad_input(folder, content):
    (folder / "broken.yaml").write_bytes(b"rlplan: 1\n" + content)
    for command in ("check", "show"):
        result = rlplan(command, folder / "broken.yaml")
        assert result.returncode == 2 and "Traceback" not in result.stdout + result.stderr
