"""The command; see the docstring of benchmarks/balance."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import click

from ..entry import as_json_option, run, tell
from .live_rounds import measure
from .published_rounds import populations


@click.command(help="Rounds balanced by history against rounds by count; see the docstring of benchmarks/balance.")
@click.option(
    "--trace", "traces", multiple=True, type=click.Path(path_type=Path), help="Published lengths; repeatable."
)
@click.option("--epochs", type=click.IntRange(min=2), default=4, show_default=True, help="Of the real runs.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Simulated rounds of a source."
)
@click.option("--gpu", default="h100", show_default=True, help="Of the simulated engines.")
@click.option("--model", default="qwen2.5-14b", show_default=True, help="That they decode.")
@click.option("--only", type=click.Choice(["both", "real", "simulated"]), default="both", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep plans and runs in this new folder.")
@as_json_option
def main(
    traces: tuple[Path, ...], epochs: int, rounds: int, gpu: str, model: str, only: str, out: Path | None, as_json: bool
) -> None:
    """Measure and print."""
    result: dict[str, Any] = {"tail_ratio": None, "of_oracle": None}
    if only != "simulated":
        with contextlib.ExitStack() as stack:
            folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bl")))
            folder.mkdir(parents=True, exist_ok=True)
            click.echo(f"real engines: 2 plans, {epochs} epochs", err=True)
            result |= measure(folder, epochs)
    if only != "real" and traces:
        sources = []
        for path in traces:
            click.echo(f"{path.name}: {rounds} rounds of each source", err=True)
            sources += list(populations(path, rounds, gpu, model))
        result |= {"of_oracle": max(each["of_oracle"] for each in sources), "sources": sources}
    lines = [
        f"{each['source']}: {each['of_oracle']:.3f} of an oracle's seconds with history, "
        f"{each['of_oracle_in_first_epoch']:.3f} without, {each['of_oracle_by_count']:.3f} by count"
        for each in result.get("sources", ())
    ]
    if result["tail_ratio"] is not None:
        lines.insert(
            0,
            f"2 engines: tail {result['tail_ratio']:.2f} of that by count, round {result['round_ratio']:.2f}; "
            f"predicted within {result['prediction_error']:.1%}",
        )
    tell(result, as_json, lines)


if __name__ == "__main__":
    run(main)
