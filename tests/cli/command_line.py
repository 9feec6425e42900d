"""Runs the command line as a user does, within this process: a process of its own costs a second of imports each time.

Tests for which the process is the point (what is imported, pipes, signals, the installed script) start one themselves.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path


class _Stream(io.TextIOWrapper):
    """A stream that holds what was written, as text or as bytes; it is no terminal."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding=os.environ.get("PYTHONIOENCODING", "utf-8"), newline="")

    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


def rlplan(*arguments, folder="/"):
    """`rlplan ARGUMENTS...` called from a folder: its exit code and what it printed."""
    from rlplan.cli.main import main

    command = ["rlplan", *map(str, arguments)]
    out, err, code = _Stream(), _Stream(), None
    before = sys.argv, sys.stdin, Path.cwd()
    # `warnings.catch_warnings` also forgets which warnings were shown already, as a fresh process has.
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")
        sys.argv, sys.stdin = command, io.StringIO()
        os.chdir(folder)
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.argv, sys.stdin = before[:2]
            os.chdir(before[2])
    return subprocess.CompletedProcess(command, code or 0, out.text(), err.text())


def printed(*arguments, code=0, folder="/"):
    """What `rlplan ARGUMENTS...` prints on standard output; it must end with the code, None: any."""
    result = rlplan(*arguments, folder=folder)
    assert code in (None, result.returncode), result.stdout + result.stderr
    return result.stdout


def data(*arguments, **options):
    """What `rlplan ARGUMENTS... --json` prints, one line, as data; options as for `printed`."""
    text = printed(*arguments, "--json", **options)
    assert text.count("\n") == 1 or arguments[0] == "report", text
    return json.loads(text)


def refused(result, *words):
    """Bad input: exit code 2, a line for each fault and no traceback; the first line has all the words."""
    assert result.returncode == 2, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert lines and all(line.startswith("error: ") for line in lines), result.stderr
    for word in words:
        assert word in lines[0], lines[0]


def without_volatile(path):
    """The text of a plan's file without when and by what it was solved."""
    return path.read_text().split("\nvolatile:")[0]
