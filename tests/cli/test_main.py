"""The command line itself: quick help that is a manual, one clear line for an error, exit codes, pipes."""

import re
import shlex
import subprocess
import sys

import click
import pytest
from click.shell_completion import BashComplete

import rlplan as package
from rlplan.cli import main
from rlplan.cli.main import _COMMANDS, PAGES, cli
from rlplan.cli.shared.output import share, steps
from rlplan.plans.yaml.errors import InputError, RunFailed, joined

from .command_line import printed, rlplan

EXAMPLES = [(name, line) for name, page in PAGES.items() for _, line in page.examples]


def test_help_imports_nothing_of_the_planner_or_executor():
    code = (
        "import sys; sys.argv = ['rlplan', '--help']\nfrom rlplan.cli.main import main\n"
        "try: main()\nfinally: print([n for n in sys.modules if n.startswith(('rlplan.p', 'rlplan.e', 'numpy', 'yaml', "
        "'pydantic', 'rich', 'torch'))], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    loaded = set(re.findall(r"'(.*?)'", done.stderr))
    assert all(name.startswith(("rlplan.plans", "yaml")) for name in loaded), loaded
    for command in _COMMANDS:
        assert f"  {command} " in done.stdout


def test_the_help_of_commands_waits_for_no_library():
    """But that of `simulate`, whose options name limits of the plan's schema."""
    code = (
        "import sys\nfrom rlplan.cli.main import cli\n"
        "for name in sorted({*cli.list_commands(None)} - {'simulate'}): cli.get_command(None, name)\n"
        "print(*{module.split('.')[0] for module in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    slow = {"jinja2", "msgspec", "networkx", "numba", "numpy", "pulp", "pydantic", "ray", "torch", "yaml"}
    assert slow & set(done.stdout.split()) == set()


def test_version_is_the_packages():
    assert printed("--version") == f"rlplan, version {package.__version__}\n"


def test_without_a_command_help_is_shown():
    result = rlplan()
    assert result.returncode == 2 and result.stderr.startswith("Usage: rlplan ")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        *(
            (ModuleNotFoundError("gone", name=f"{name}.part"), 2,
             f"error: this command needs {name}; in a checkout: pip install '.[gpu]' or '.[cpu]'")
            for name in ("torch", "psutil", "anything")
        ),
        (MemoryError(), 1, "error: the memory of this machine, or what it allows this process, does not suffice"),
        (RunFailed("no engine"), 1, "run failed: no engine"),
        (OSError(28, "No space left on device", "/x/y"), 1, "error: /x/y: No space left on device"),
        (OSError("odd"), 1, "error: odd"),
        (BrokenPipeError(), 1, ""),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.exceptions.Abort(), 130, ""),
        (click.UsageError("a  b\nc."), 2, "error: a b c"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)  # fmt: skip
def test_an_error_is_one_line_and_an_exit_code(error, code, said, monkeypatch):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(main.cli, "main", fails)
    result = rlplan()
    assert (result.returncode, result.stderr) == (code, f"{said}\n" if said else "")


def test_a_hundred_faults_are_listed_and_the_rest_counted(monkeypatch):
    def fails(*_, **__):
        raise joined([InputError("is odd", f"{number}.yaml") for number in range(103)])

    monkeypatch.setattr(main.cli, "main", fails)
    lines = rlplan().stderr.splitlines()
    assert lines[:100] == [f"error: {number}.yaml: is odd" for number in range(100)]
    assert lines[100:] == ["error: 3 further faults are not listed; mend these first"]


def test_an_error_of_our_own_is_not_hidden(monkeypatch):
    def fails(*_, **__):
        raise ModuleNotFoundError("gone", name="rlplan.planner.gone")

    monkeypatch.setattr(main.cli, "main", fails)
    with pytest.raises(ModuleNotFoundError):
        rlplan()


@pytest.mark.parametrize(
    ("redirection", "said", "codes"),
    [("> /dev/full", "error: No space left on device", {1}), ("| head -c 1 > /dev/null", "", {0, 1})],
)
def test_an_output_that_takes_nothing_is_no_traceback(redirection, said, codes, solved_once):
    words = f"{sys.executable} -m rlplan.cli.main show {solved_once}/plan.yaml --json {redirection}"
    words += "; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False, cwd="/")
    assert done.stderr.strip() == said and done.returncode in codes


# -- help as a manual --------------------------------------------------------------------------------------------------


def test_every_command_has_a_page_and_every_option_a_text():
    assert list(PAGES) == list(_COMMANDS)
    for name in PAGES:
        command = cli.get_command(None, name)
        options = [param for param in command.params if param.param_type_name == "option"]
        assert [option.opts[0] for option in options if not option.help] == [], name
        assert name in ("completion", "schema") or any("--json" in option.opts for option in options)


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_is_a_command_line_that_parses(name, line):
    words = shlex.split(line.replace('eval "$(', "").replace(')"', "").partition(" > ")[0])
    assert words[:2] == ["rlplan", name]
    assert cli.get_command(None, name).make_context(name, words[2:]).params


@pytest.mark.parametrize("name", PAGES)
def test_help_shows_options_examples_exit_codes_and_a_way_on(name):
    shown = printed(name, "--help")
    text = " ".join(shown.split())
    assert f"Usage: rlplan {name}" in text and "Exit codes: 0" in text and f", 2 {PAGES[name].bad_input}"[:20] in text
    assert all(line in shown for _, line in PAGES[name].examples)
    assert all(f"rlplan {other}" in text and other in PAGES for other in PAGES[name].see_also)


def test_a_shell_completes_commands_options_and_choices():
    complete = BashComplete(cli, {}, "rlplan", "_RLPLAN_COMPLETE")

    def values(words, begun):
        return [item.value for item in complete.get_completions(words, begun)]

    assert values([], "s") == ["solve", "show", "simulate", "status", "samples", "schema"]
    assert "--bias-budget" in values(["solve"], "--b") and values(["schema"], "pl") == ["plan"]
    assert "file" in [item.type for item in complete.get_completions(["show"], "")]
    for shell in ("bash", "zsh", "fish"):
        assert "_RLPLAN_COMPLETE" in printed("completion", shell)


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_is_a_line_for_each_new_text_without_a_terminal(capsys):
    with steps("profile") as notify:
        for text in ("one", "one", "two", "one"):
            notify(text)
    with share("solve") as update:
        update("half", 0.5)
    assert capsys.readouterr() == ("", "profile: one\nprofile: two\nprofile: one\n")


def test_progress_is_drawn_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for work, calls in ((steps, [("engines start",)]), (share, [("simulating", 0.5)])):
        with work("title") as tell:
            for call in calls:
                tell(*call)
        assert f"title: {calls[0][0]}" in capsys.readouterr().err
