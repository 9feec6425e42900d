"""The command; see the docstring of benchmarks/headlines."""

from __future__ import annotations

import json
from typing import Any

import click

from ..entry import run


@click.command(help="Whether what solve, diff and tune say first is true.")
@click.option("--only", type=click.Choice(["both", "solved", "pairs"]), default="both", show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=40, show_default=True, help="Jobs that are solved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(only: str, jobs: int, as_json: bool) -> None:
    """Measure and print."""
    figures: dict[str, Any] = {}
    if only != "pairs":
        from .solved import solved_figures

        figures |= solved_figures(jobs)
    if only != "solved":
        from .pairs import pair_figures

        figures |= pair_figures()
    click.echo(json.dumps(figures) if as_json else "\n".join(f"{key}: {value}" for key, value in figures.items()))


if __name__ == "__main__":
    run(main)
