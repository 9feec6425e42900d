"""Runs the command line as a user does."""

from __future__ import annotations

import subprocess
import sys


def rlplan(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rlplan.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )


def refused(result, *words):
    """Bad input: exit code 2, one line, no traceback."""
    assert result.returncode == 2, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    for word in words:
        assert word in lines[0], lines[0]
