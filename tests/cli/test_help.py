"""Help as a manual: every command has examples that parse, exit codes and a way on; shells complete."""

from __future__ import annotations

import shlex

import pytest
from click.shell_completion import BashComplete

from rlplan.cli.main import _COMMANDS, cli
from rlplan.cli.manual import PAGES

from .command_line import rlplan

EXAMPLES = [(name, line) for name, page in PAGES.items() for _, line in page.examples]


def command(name):
    found = cli.get_command(None, name)
    assert found is not None
    return found


def test_every_command_has_a_page_and_every_page_a_command():
    assert list(PAGES) == list(_COMMANDS)


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_is_a_command_line_that_parses(name, line):
    words = shlex.split(line.replace('eval "$(', "").replace(')"', "").partition(" > ")[0])
    assert words[:2] == ["rlplan", name]
    context = command(name).make_context(name, words[2:])
    assert context.params


@pytest.mark.parametrize("name", PAGES)
def test_the_help_of_a_command_shows_its_options_examples_exit_codes_and_where_to_go_on(name):
    result = rlplan(name, "--help")
    assert result.returncode == 0
    text = " ".join(result.stdout.split())
    assert f"Usage: rlplan {name}" in text and "Exit codes: 0" in text
    for _, line in PAGES[name].examples:
        assert line in result.stdout
    for other in PAGES[name].see_also:
        assert f"rlplan {other}" in text and other in PAGES


@pytest.mark.parametrize("name", [n for n in PAGES if n not in ("completion", "schema")])
def test_every_command_that_prints_a_result_can_print_it_as_json(name):
    assert any("--json" in option.opts for option in command(name).params)


def test_every_option_says_what_it_does():
    for name in PAGES:
        bare = [p.opts[0] for p in command(name).params if p.param_type_name == "option" and not p.help]
        assert bare == [], name


def test_a_shell_completes_commands_options_and_choices():
    complete = BashComplete(cli, {}, "rlplan", "_RLPLAN_COMPLETE")
    assert [item.value for item in complete.get_completions([], "s")] == [
        "solve",
        "show",
        "simulate",
        "status",
        "schema",
    ]
    assert "--bias-budget" in [item.value for item in complete.get_completions(["solve"], "--b")]
    assert [item.value for item in complete.get_completions(["schema"], "pl")] == ["plan"]
    assert "file" in [item.type for item in complete.get_completions(["show"], "")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shells_script_calls_rlplan(shell):
    result = rlplan("completion", shell)
    assert result.returncode == 0 and "_RLPLAN_COMPLETE" in result.stdout
