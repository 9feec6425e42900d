"""Sessions at the command line, whole: transcripts/*.txt has what is typed and all that is printed.

    @ solved                               the folder (a fixture) that each session below begins with, `{at}`
    ## ...                                 what the session is about
    % job.yaml: tp: [1] => tp: [2, 1]      an edit; `% - FILE` removes one, `% FILE := TEXT` writes one. Edits that
                                           follow a command are made in the folder as it was at first
    $ solve {at}                           a command, on 120 columns unless it begins with COLUMNS=80; what it prints
    [2]                                    follows, lines of standard error after `! `, and its exit code, if not 0

A command that fails must write nothing. `RLPLAN_WRITE_GOLDEN=1 pytest FILE` writes what is printed now;
the diff is then read like one of code.
"""

import os
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlplan.cli.main import cli

from .command_line import rlplan
from .solved_folder import harmed, listing

FOLDER = Path(__file__).with_name("transcripts")


@pytest.fixture
def tmp_path():
    """The sessions' folders; their path is as long wherever tests run, since a terminal's lines break by it."""
    with tempfile.TemporaryDirectory(prefix="rlplan-", dir="/tmp") as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Session:
    """A part of a transcript: the fixture of its folder, and its lines."""

    file: str
    fixture: str
    lines: tuple[str, ...]


def sessions() -> list[Session]:
    """All sessions; a session begins with a line that begins with ##."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        head, *parts = path.read_text(encoding="utf-8").split("\n## ")
        found += [Session(path.name, head.split()[1], ("## " + part).splitlines()) for part in parts]
    assert found, "there are no transcripts"
    return found


def played(session: Session, at: Path) -> list[str]:
    """The session's lines as they are when it is played in the folder."""
    lines: list[str] = []
    first, ran = listing(at), False
    for line in session.lines:
        if line.startswith("% "):
            if ran:
                restored(at, first)
            ran = False
            harmed(at, [edit_of(line[2:])])
        elif line.startswith("$ "):
            before, ran = listing(at), True
            *settings, words = re.split(r"(?<=[A-Z]=\d\d) |(?<=[A-Z]=\d\d\d) ", line[2:])
            with pytest.MonkeyPatch.context() as patch:
                for name in ("GITHUB_WORKSPACE", "RAY_ADDRESS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
                    patch.delenv(name, raising=False)
                for setting in ("COLUMNS=120", *settings):
                    patch.setenv(*setting.split("="))
                result = rlplan(*(word.replace("\\n", "\n").format(at=at) for word in words.split(" ")))
            assert result.returncode == 0 or listing(at) == before, f"{line} fails, and writes"
            text = result.stdout.splitlines() + [f"! {each}" for each in result.stderr.splitlines()]
            text = [re.sub(r"measured \d+ days? ago", "measured {days} ago", each) for each in text]
            text = [re.sub(r'(digest(?:":)? +"?)[0-9a-f]{16}', r"\1{sixteen digits}", each) for each in text]
            code = [f"[{result.returncode}]"] if result.returncode else []
            lines += [
                line,
                *(each.replace(str(at), "{at}").replace(str(at)[1:], "{at}").rstrip() for each in text),
                *code,
            ]
            continue
        elif not line.startswith("## "):
            continue
        lines.append(line)
    return lines


def restored(at: Path, first: dict[str, bytes]) -> None:
    """Give the folder the files that it had at first."""
    for name in listing(at).keys() - first.keys():
        (at / name).unlink()
    for name, content in first.items():
        (at / name).write_bytes(content)


def edit_of(text: str) -> tuple[str | None, ...]:
    """An edit as `harmed` takes it; a backslash and n stand for a line's end."""
    text = text.replace("\\n", "\n")
    if text.startswith("- "):
        return (text[2:],)
    if " :=" in text:
        name, new = text.split(" :=")
        return name, None, new.removeprefix(" ")
    name, change = text.split(": ", 1)
    return name, *change.split(" => ")


@pytest.mark.parametrize("session", sessions(), ids=lambda session: f"{session.file}: {session.lines[0][3:]}")
def test_a_session_prints_what_its_transcript_has(session, request):
    lines = played(session, request.getfixturevalue(session.fixture))
    if os.environ.get("RLPLAN_WRITE_GOLDEN"):
        path = FOLDER / session.file
        was = "\n".join(session.lines).rstrip("\n")
        path.write_text(path.read_text(encoding="utf-8").replace(was, "\n".join(lines)), encoding="utf-8")
    else:
        assert [line for line in lines if line] == [line for line in session.lines if line]


def test_commands_that_messages_name_can_be_called():
    lines = [line for session in sessions() for line in session.lines]
    told = " , ".join(line for line in lines if line.startswith("! error: ") or "[input-missing]" in line)
    named = {
        re.split(r" (?:measures|takes|writes|needs)\b", text)[0] for text in re.findall("rlplan [a-z][^,;()`]*", told)
    }
    parsed = [shlex.split(text)[1:] for text in named if re.search(r" [A-Z{]", text) and "--lengths" not in text]
    assert len(parsed) >= 8
    for command, *words in parsed:
        assert cli.get_command(None, command).make_context(command, words).params
