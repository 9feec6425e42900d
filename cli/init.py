"""`rlplan init [DIR]`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..plans.phrases.numbers import count, seconds

if TYPE_CHECKING:
    from ..profiles.library.skeleton import RewardKind


@click.command("init")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A configuration of verl, slime, vime, TRL, SkyRL or OpenRLHF: YAML, script or list of overrides.",
)
@click.option("--gpus", metavar="NxMxGPU", help="Nodes, GPUs of a node, and the GPU's name, as in 8x8xH100.")
@click.option("--model", metavar="MODEL", help="Usual name, hub id or folder of the model to train, as in Qwen2.5-32B.")
@click.option(
    "--reward",
    type=click.Choice(["math", "code", "function"]),
    help="How responses are scored, with --gpus and --model. Default: math.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the example's model and data."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def init_command(
    folder: Path | None,
    source: Path | None,
    gpus: str | None,
    model: str | None,
    reward: RewardKind | None,
    seed: int,
    as_json: bool,
) -> int:
    """Write documents to begin with into DIR, which must be new or empty.

    With --gpus and --model: a cluster.yaml with prices, a job.yaml, and example rows of the data; comments say what you
    must correct. A plan can be solved from them without GPUs and without data. DIR is by default the model's name.

    With --from: job.yaml and cluster.yaml of another trainer's configuration; what is not in them is listed. --gpus
    says which machines, and --model which model, where the configuration does not.

    Without these options: a ready example that trains on this machine. cluster.yaml describes this machine, job.yaml a
    small task with a verifiable reward, data.jsonl its prompts, and model/ is a tiny Hugging Face model that is trained
    on the spot (about a minute) to reason its way to an answer.
    """
    if source is not None:
        if reward is not None:
            raise click.UsageError("--reward goes without --from: rewards are not in a trainer's configuration")
        return _import(source, folder, gpus, model, as_json)
    if gpus is None and model is None:
        if folder is None:
            raise click.UsageError("name a folder for the example, or --gpus and --model for a job of your own")
        if reward is not None:
            raise click.UsageError("--reward goes with --gpus and --model")
        return _example(folder, seed, as_json)
    if gpus is None or model is None:
        given, lacks = ("--model", "--gpus 8x8xH100") if gpus is None else ("--gpus", "--model Qwen2.5-32B")
        raise click.UsageError(f"{given} alone does not make a job; add the other of the two, as in {lacks}")
    seeded = click.get_current_context().get_parameter_source("seed")
    if seeded is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--seed is for the example; with --gpus and --model nothing is drawn")
    return _skeleton(folder, gpus, model, reward or "math", as_json)


def _skeleton(folder: Path | None, gpus: str, model: str, reward: RewardKind, as_json: bool) -> int:
    from ..executor.example.write import new_folder
    from ..plans.yaml.yaml_io import place_schema
    from ..profiles.library import shipped_model
    from ..profiles.library.skeleton import machines_of, model_path_of, skeleton

    machines = machines_of(gpus)
    folder = folder or Path(Path(model.rstrip("/")).name.lower())
    path, shape = model_path_of(model, folder)
    documents = skeleton(machines, path, shape, reward)
    with new_folder(folder) as building:
        for name, text in documents.files.items():
            (building / name).write_text(text, encoding="utf-8", newline="\n")
        for kind in ("cluster", "job"):
            place_schema(building, kind)
    shipped = f" --shipped {documents.shipped}" if documents.shipped else ""
    steps = [
        f"rlplan profile {folder}{shipped}",
        f"rlplan solve {folder} --lengths {'code' if reward == 'code' else 'math'}-16k",
        f"rlplan show {folder / 'plan.yaml'}",
    ]
    if as_json:
        sizes = {key: getattr(shape, key) for key in ("parameters", "layers", "heads", "kv_heads", "guessed")}
        facts = {"folder": str(folder), "files": sorted(documents.files), "model": {"path": path, **sizes}}
        click.echo(json.dumps({**facts, "next": steps}))
        return 0
    click.echo(
        f"{folder}: {', '.join(documents.files)}; {machines.nodes} x {machines.per_node} {machines.gpu.name}, {path}, "
        f"{reward} reward\n"
        "correct what the comments name, then"
    )
    comments = [
        f"measures, on one of these nodes: no profile of {shape.name} on {machines.gpu.name} ships"
        if documents.shipped is None
        else "takes a profile that ships; no GPU is needed"
        if shipped_model(shape) == documents.shipped
        else f"takes the profile that ships nearest to {shape.name}, and scales it; no GPU is needed",
        "response lengths that ship; --trace FILE takes yours",
        "what was planned, and why",
    ]
    width = max(map(len, steps))
    for step, comment in zip(steps, comments, strict=True):
        click.echo(f"  {step:{width}}  # {comment}")
    return 0


def _import(source: Path, folder: Path | None, gpus: str | None, model: str | None, as_json: bool) -> int:
    from ..executor.example.write import new_folder
    from ..frameworks.readers.read_setup import read_setup
    from ..plans.yaml.yaml_io import place_schema
    from ..profiles.library.imported import imported_job

    setup = read_setup(source)
    folder = folder or Path(source.stem)
    imported = imported_job(setup, gpus, model, folder)
    with new_folder(folder) as building:
        for name, text in imported.documents.files.items():
            (building / name).write_text(text, encoding="utf-8", newline="\n")
        for kind in ("cluster", "job"):
            place_schema(building, kind)
    shipped = f" --shipped {imported.documents.shipped}" if imported.documents.shipped else ""
    steps = [f"rlplan check {folder / 'job.yaml'}", f"rlplan profile {folder}{shipped}",
             f"rlplan solve {folder} --lengths math-16k --for any"]  # fmt: skip
    facts = {
        "folder": str(folder),
        "files": sorted(imported.documents.files),
        "framework": setup.framework,
        "version": setup.version,
        "model": imported.model,
        "not_taken": list(imported.not_taken),
        "not_read": list(imported.not_read),
        "defaulted": list(setup.defaulted),
        "next": steps,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return 0
    click.echo(f"{folder}: {', '.join(imported.documents.files)} of {source}, for {setup.framework} {setup.version}")
    click.echo(f"defaults of {setup.framework}, which it does not state: {', '.join(setup.defaulted) or 'none'}")
    for note in imported.not_taken:
        click.echo(f"not taken: {note}")
    click.echo(f"{count(len(imported.not_read), 'setting')} more change no bytes and no seconds; job.yaml names them")
    click.echo("\n".join(["correct what the comments name, then", *(f"  {step}" for step in steps)]))
    return 0


def _example(folder: Path, seed: int, as_json: bool) -> int:
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
        f"{folder}: model with {facts['parameters']:,} parameters (warmed up in {seconds(facts['warmup_s'])}), "
        f"{facts['prompts']} prompts, {facts['accelerators']} x {facts['kind']}\n"
        f"next: rlplan profile {folder / 'job.yaml'}"
    )
    return 0
