"""`rlplan init DIR`"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of model, data and training.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def init_command(folder: Path, seed: int, as_json: bool) -> int:
    """Write a ready example into DIR, which must be new or empty.

    cluster.yaml describes this machine, job.yaml a small task with a verifiable reward, data.jsonl its prompts, and
    model/ is a tiny Hugging Face model that is trained on the spot (about a minute) to reason its way to an answer.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from ..executor.example.write import write_example

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, console=Console(stderr=True), disable=as_json or not sys.stderr.isatty()) as progress:
        bar = progress.add_task("warming the model up", total=None, loss="")

        def on_step(done: int, total: int, loss: float) -> None:
            progress.update(bar, completed=done, total=total, loss=f"loss {loss:.3f}")

        facts = write_example(folder, seed, on_step=on_step)
    if as_json:
        click.echo(json.dumps(facts))
        return 0
    click.echo(
        f"{folder}: model with {facts['parameters']:,} parameters (warmed up in {facts['warmup_s']:.0f} s), "
        f"{facts['prompts']} prompts, {facts['accelerators']} x {facts['kind']}\n"
        f"next: rlplan profile {folder / 'job.yaml'}"
    )
    return 0
