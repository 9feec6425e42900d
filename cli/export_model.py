"""`rlplan export-model RUN OUT`: the model of a run's checkpoint as a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from ..plans.phrases.numbers import bytes_text, count, seconds
from ..plans.yaml.errors import InputError


@click.command("export-model")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), default=None, help="Of the checkpoint. Default: the latest.")
@click.option("--best", is_flag=True, help="Of the checkpoint whose evaluation had the highest mean reward.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default=None,
    help="Type of the weights. Default: the job's; checkpoints hold float32.",
)
@click.option(
    "--model",
    default=None,
    help="Folder or hub id of the model that RUN trained, where its job is not found any more.",
)
@click.option("--adapter", is_flag=True, help="Of a job with model.lora: the adapters alone, as a folder of peft.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def export_model_command(
    run: Path,
    out: Path,
    step: int | None,
    best: bool,
    dtype: str | None,
    model: str | None,
    adapter: bool,
    as_json: bool,
) -> int:
    """Write the model of a checkpoint of RUN to OUT, a new folder that transformers and vLLM load.

    It holds the weights as safetensors, the trained model's config, tokenizer and generation config, and a README.md
    with digests of plan, job and data, and how rewards and lengths went. RUN is the --out of `rlplan execute`, and may
    be going on. Neither GPUs nor the job's machines are needed, nor memory for the model: of its weights 5 GB are held
    at a time.

    Of a job that trains adapters (model.lora) the weights are the model's own with the adapters added; with --adapter
    OUT holds adapter_config.json and adapter_model.safetensors in their place, which peft and vLLM load.

    A run keeps its latest two checkpoints, that of its best evaluation, and those of `rlplan execute --keep-every`.
    """
    from ..executor.records.checkpoints import best_checkpoint
    from ..executor.records.model_export import export_model, step_of
    from .shared.output import share

    if best:
        if step is not None:
            raise click.UsageError("--step and --best name two checkpoints; leave one out")
        if (found := best_checkpoint(run)) is None:
            raise InputError("has no checkpoint of an evaluation (job.yaml, evaluate); name one with --step", str(run))
        step = step_of(found[0])
    with share("export-model") as update:
        written = export_model(run, out, step, dtype=dtype, model=model, adapter=adapter, progress=update)
    if as_json:
        click.echo(json.dumps({"run": str(run), **asdict(written), "out": str(out)}))
    else:
        click.echo(
            f"step {written.step} in {out}: {count(written.parameters, 'parameter')} in {written.dtype}, "
            f"{bytes_text(written.bytes)} in {count(written.files, 'file')}, {seconds(written.seconds)}"
        )
    return 0
