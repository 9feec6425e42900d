"""Output of the command line: results, files that must be files, and progress of long work on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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


@contextmanager
def steps(title: str) -> Iterator[Callable[[str], None]]:
    """Yields `notify(text)` for work of unknown length: a spinner on a terminal, else a line per text."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = ""

        def line(text: str) -> None:
            nonlocal last
            if text != last:
                console.print(f"{title}: {text}", highlight=False, soft_wrap=True)
            last = text

        yield line
        return
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as view:
        task = view.add_task(title)
        yield lambda text: view.update(task, description=f"{title}: {text}")


@contextmanager
def share(title: str) -> Iterator[Callable[[str, float], None]]:
    """Yields `update(text, share done)` for work of known length: a bar on a terminal, else nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text, done: None
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    ) as view:
        task = view.add_task(title, total=1.0)
        yield lambda text, done: view.update(task, description=f"{title}: {text}", completed=done)
