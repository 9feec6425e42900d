"""A cluster, job, profile or trace that is not there: one line that names the file and a command that makes one."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from rlplan.cli.main import _COMMANDS, cli

from .command_line import refused, rlplan
from .solved_folder import write_solved


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_solved(tmp_path_factory.mktemp("missing"))


def commands_in(line):
    """The command lines that a message names, each parsed by its own command; options that are to come are left out."""
    found = []
    for text in re.findall(r"rlplan [a-z][^,;()]*", line):
        words = shlex.split(re.split(r" (?:measures|takes|writes|needs|makes|again)\b", text)[0])
        assert words[1] in _COMMANDS, text
        if "--lengths" not in words:
            command = cli.get_command(None, words[1])
            assert command is not None and command.make_context(words[1], words[2:]).params
        found.append(words)
    return found


@pytest.mark.parametrize(
    ("command", "gone", "words"),
    [
        ("solve", "cluster.yaml", ["init", "--cluster"]),
        ("solve", "job.yaml", ["init"]),
        ("solve", "profile.yaml", ["profile", "--shipped"]),
        ("solve", "lengths.jsonl", ["profile", "--lengths"]),
        ("profile", "cluster.yaml", ["init"]),
        ("profile", "job.yaml", ["init"]),
        ("check", "profile.yaml", ["profile", "--shipped"]),
        ("check", "cluster.yaml", ["init"]),
        ("check", "lengths.jsonl", ["--trace"]),
        ("execute", "profile.yaml", ["profile", "--shipped"]),
    ],
)
def test_the_line_about_a_file_that_is_missing_names_a_command_that_makes_one(command, gone, words, whole, tmp_path):

    folder = shutil.copytree(whole, tmp_path / "job")
    (folder / gone).unlink()
    target = folder / "plan.yaml" if command in ("check", "execute") else folder
    result = rlplan(command, target, *(["--dry-run"] if command == "execute" else []))
    if command == "check":
        assert result.returncode == 1, result.stderr
        line = next(line for line in result.stdout.splitlines() if "[input-missing]" in line)
    else:
        refused(result, gone, "no such file")
        line = result.stderr.splitlines()[0]
    assert gone in line and all(word in line for word in words), line
    assert commands_in(line), line


def test_a_trace_that_is_named_and_not_there_is_told_with_ways_to_get_one(whole):
    said = rlplan("solve", whole, "--trace", whole / "none.jsonl")
    refused(said, "none.jsonl", "rlplan profile", "rlplan lengths import", "--lengths NAME")
    assert commands_in(said.stderr)
