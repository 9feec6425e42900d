"""Output of the command line: standard output, files that must be files, results."""

from __future__ import annotations

from pathlib import Path

import click

from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import STDOUT


def check_stdout(path: Path | None, option: str, as_json: bool) -> None:
    """Raise InputError if both the --json result and the file of `option` would go to standard output."""
    if path == STDOUT and as_json:
        raise InputError(f"{option} - and --json both write to standard output; give one of them")


def must_be_file(path: Path, why: str) -> None:
    """Raise InputError if `path` is standard output or a device; `why` a file is needed completes the message."""
    if path == STDOUT or (path.exists() and not path.is_file()):
        raise InputError(f"is no file, and {why}; name a file", str(path))


def tell(text: str, *files: Path | None) -> None:
    """Print a command's result; to standard error if one of its files went to standard output."""
    click.echo(text, err=STDOUT in files)


def see_it(out: Path) -> list[str]:
    """A line with the command that shows the plan at `out`; empty for standard output."""
    return [] if out == STDOUT else [f"see it: rlplan show {out}"]
