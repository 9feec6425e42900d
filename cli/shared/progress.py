"""Progress of long work, on standard error so that results can be piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


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
