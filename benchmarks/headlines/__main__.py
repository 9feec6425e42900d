"""The command; see the docstring of benchmarks/headlines."""

from __future__ import annotations

from typing import Any

import click

from ..entry import as_json_option, run, tell


@click.command(help="Whether what solve, diff and tune say first is true.")
@click.option("--only", type=click.Choice(["both", "solved", "pairs"]), default="both", show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=40, show_default=True, help="Jobs that are solved.")
@as_json_option
def main(only: str, jobs: int, as_json: bool) -> None:
    """Measure and print."""
    figures: dict[str, Any] = {}
    if only != "pairs":
        from .solved import solved_figures

        figures |= solved_figures(jobs)
    if only != "solved":
        from .pairs import pair_figures

        figures |= pair_figures()
    tell(figures, as_json)


if __name__ == "__main__":
    run(main)
