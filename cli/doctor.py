"""`rlplan doctor [FILE]`"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from ..plans.phrases.numbers import bytes_text, count, seconds
from ..plans.yaml.errors import InputError
from .shared.options import Finite

if TYPE_CHECKING:
    from ..planner.doctor.diagnose import Diagnosis
    from ..plans.facts.trainer_setup import Framework, TrainerSetup

MOST_TOKENS, MOST_SAMPLES = 10_000_000, 1_000_000
FRAMEWORKS = ("verl", "slime", "vime", "trl", "skyrl", "openrlhf")
GIGA = 1e9


@click.command("doctor")
@click.argument("source", metavar="[FILE]", required=False, type=click.Path())
@click.option(
    "--framework",
    type=click.Choice(FRAMEWORKS),
    help="Whose FILE it is, if it does not tell; or, without FILE, whose defaults.",
)
@click.option("--model", help="Hub id, folder or usual name, as in Qwen3-30B-A3B.")
@click.option(
    "--gpus",
    metavar="NxMxGPU",
    help="Nodes, GPUs of a node and the GPU, as in 1x8xH100; with FILE the GPU alone, as in H100.",
)
@click.option(
    "--host-gb",
    type=Finite(0, 1e6, min_open=True),
    help="Memory of a node's host, in GB. Default: hosts are not judged.",
)
@click.option("--train-gpus", type=click.IntRange(min=1), help="GPUs of the trainer, if engines have others.")
@click.option("--rollout-gpus", type=click.IntRange(min=1), help="GPUs of engines, if the trainer has others.")
@click.option("--rollout-tp", type=click.IntRange(min=1), help="GPUs of an engine.")
@click.option("--train-tp", type=click.IntRange(min=1), help="Tensor parallel ranks of the trainer.")
@click.option("--train-pp", type=click.IntRange(min=1), help="Pipeline stages of the trainer.")
@click.option("--train-cp", type=click.IntRange(min=1), help="Context parallel ranks of the trainer.")
@click.option("--train-ep", type=click.IntRange(min=1), help="Ranks that share out the experts.")
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    help="What data-parallel ranks share out: 1 the optimizer, 2 gradients too, 3 weights too.",
)
@click.option("--optimizer-on", type=click.Choice(["device", "host"]), help="Where the optimizer's states are.")
@click.option(
    "--engine-sleep/--no-engine-sleep", "engine_sleeps", default=None, help="Engines leave the GPU for training."
)
@click.option("--micro-batch", type=click.IntRange(1, MOST_SAMPLES), help="Samples of a micro-batch on a rank.")
@click.option(
    "--micro-batch-tokens", type=click.IntRange(1, MOST_TOKENS), help="Tokens of a micro-batch on a GPU, instead."
)
@click.option("--prompts", type=click.IntRange(1, MOST_SAMPLES), help="Prompts of a step.")
@click.option("--samples", type=click.IntRange(1, MOST_SAMPLES), help="Samples of a prompt.")
@click.option("--max-prompt-tokens", type=click.IntRange(1, MOST_TOKENS), help="Cap of prompts.")
@click.option("--max-response-tokens", type=click.IntRange(1, MOST_TOKENS), help="Cap of responses.")
@click.option("--mean-response-tokens", type=Finite(1, MOST_TOKENS), help="Mean of responses.")
@click.option("--memory-share", type=Finite(0, 1, min_open=True), help="Of a GPU that an engine takes.")
@click.option("--explain", is_flag=True, help="Print the sums behind each finding, and what each phase holds.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def doctor_command(
    source: str | None, framework: str | None, gpus: str | None, explain: bool, as_json: bool, **flags: Any
) -> int:
    """Say whether a trainer's set-up fits, what clashes in it, what binds, and what would be faster. No GPU is needed.

    FILE is a configuration of verl, TRL or SkyRL, a launch script of verl, slime, vime or OpenRLHF, or a job.yaml of
    rlplan. Options stand above what FILE says. Without FILE the set-up is the options, and what they do not say is the
    framework's default (and named):

    \b
    rlplan doctor run_grpo.sh --gpus H100 --host-gb 1007
    rlplan doctor --framework slime --model Qwen3-30B-A3B --gpus 1x8xH100 --host-gb 1007 --optimizer-on host

    Memory is priced for each phase, on a GPU and on a node's host, before and after the first update: Adam's moments
    come with that. Each remedy was tried: with it alone the set-up fits.
    """
    from ..planner.doctor.diagnose import diagnose

    setup = _setup(source, cast("Framework | None", framework), gpus, flags)
    diagnosis = diagnose(setup)
    if as_json:
        click.echo(json.dumps(_data(diagnosis)))
    else:
        _print(diagnosis, explain)
    return diagnosis.exit_code


_ATTRIBUTES = {
    "train_tp": "tp", "train_pp": "pp", "train_cp": "cp", "train_ep": "ep", "micro_batch": "micro_batch_samples",
    "optimizer_on": "optimizer_at",
}  # fmt: skip
"""Attributes of a set-up by the names of options, where these differ."""

_SAID_BY_OPTIONS = (
    "prompts", "samples", "max_prompt_tokens", "max_response_tokens", "micro_batch", "micro_batch_tokens",
    "memory_share", "rollout_tp", "train_tp", "train_pp", "train_cp", "train_ep", "zero",
)  # fmt: skip


def _setup(source: str | None, framework: Framework | None, gpus: str | None, flags: dict[str, Any]) -> TrainerSetup:
    """The set-up of FILE with the options above it, or of the options alone."""
    from ..frameworks.readers.read_setup import read_setup, setup_from_flags
    from ..profiles.hardware import gpu_of
    from ..profiles.library.skeleton import machines_of

    if flags["micro_batch"] is not None and flags["micro_batch_tokens"] is not None:
        raise click.UsageError("--micro-batch and --micro-batch-tokens are two ways to say one thing; write one")
    mean, most = flags["mean_response_tokens"], flags["max_response_tokens"]
    if mean is not None and most is not None and mean > most:
        raise click.UsageError(f"--mean-response-tokens {mean:g} is above --max-response-tokens {most}")
    named = None if gpus is None or source is None else gpu_of(gpus)
    machines = None if gpus is None or ("x" not in gpus.lower() and named is not None) else machines_of(gpus)
    host_gb, sleeps = flags.pop("host_gb"), flags.pop("engine_sleeps")
    host_bytes = None if host_gb is None else host_gb * GIGA
    if source is None:
        if framework is None or flags["model"] is None or machines is None:
            raise click.UsageError("name a FILE, or --framework, --model and --gpus")
        model = flags.pop("model")
        setup = setup_from_flags(
            framework, model=model, nodes=machines.nodes, gpus_per_node=machines.per_node, gpu=machines.gpu.name,
            host_bytes=host_bytes, **flags,
        )  # fmt: skip
        return setup if sleeps is None else replace(setup, engine_sleeps=sleeps)
    setup = read_setup(source, framework)
    said = {_ATTRIBUTES.get(name, name): value for name, value in flags.items() if value is not None}
    if "micro_batch_samples" in said:
        said["micro_batch_tokens"] = None
    elif "micro_batch_tokens" in said:
        said["micro_batch_samples"] = None
    if sleeps is not None:
        said["engine_sleeps"] = sleeps
    if host_bytes is not None:
        said["host_bytes"] = host_bytes
    if machines is None and named is not None:
        said["gpu"] = named.name
    if machines is not None:
        said["gpu"] = machines.gpu.name
        if (machines.nodes, machines.per_node) != (setup.nodes, setup.gpus_per_node):
            if not {"nodes", "gpus_per_node"} <= set(setup.defaulted):
                raise InputError(
                    f"{source}: it is for {setup.nodes} x {setup.gpus_per_node} GPUs, and --gpus says {gpus}; write "
                    f"--gpus {setup.nodes}x{setup.gpus_per_node}x{machines.gpu.name}, or change the file"
                )
            total = machines.nodes * machines.per_node
            said = {"train_gpus": total, "rollout_gpus": total, **said}
            said |= {"nodes": machines.nodes, "gpus_per_node": machines.per_node}
    left = tuple(name for name in setup.defaulted if name not in said)
    return replace(setup, **said, defaulted=left)


def _data(diagnosis: Diagnosis) -> dict[str, Any]:
    """What --json prints: remedies in the framework's own keys, beside the attributes that they change."""
    from ..frameworks.setting_texts import changes_text
    from ..planner.doctor.diagnose import as_dict

    data = as_dict(diagnosis)
    for finding in data["findings"]:
        finding["remedies"] = [
            {"changes": changes, "write": changes_text(diagnosis.setup, changes)} for changes in finding["remedies"]
        ]
        finding["keys"] = [key for name in finding["attributes"] if (key := diagnosis.setup.keys.get(name))]
    for placed in data["placements"]:
        placed["write"] = changes_text(diagnosis.setup, placed["changes"])
    return data


def _print(diagnosis: Diagnosis, explain: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from ..frameworks.setting_texts import changes_text
    from .screens.bars import table

    console = Console(highlight=False, soft_wrap=True)
    setup = diagnosis.setup
    for line in _head(diagnosis):
        console.print(Text(line))
    for finding in diagnosis.findings:
        style = "yellow" if finding.warning else "red"
        console.print(Text.assemble(("  " + finding.rule, style), f"  {finding.message}"))
        if explain or not finding.warning:
            for line in finding.arithmetic:
                console.print(Text(f"      {line}", style="dim"))
        for number, changes in enumerate(finding.remedies):
            console.print(Text(f"      {'fits with' if not number else '       or'}  {changes_text(setup, changes)}"))
        if finding.advice:
            console.print(Text(f"      {finding.advice}"))
    if diagnosis.seconds is None:
        console.print(Text(f"no seconds: {diagnosis.no_seconds}"))
    else:
        phases = ", ".join(f"{name} {seconds(size)}" for name, size in diagnosis.seconds.phases_s.items() if size > 0)
        step = f"{seconds(diagnosis.seconds.step_s)} +- {diagnosis.seconds.error:.0%}"
        console.print(Text(f"a step takes {step}: {phases}"))
        reached = [
            (name, limit / diagnosis.seconds.phases_s[name]) for name, limit in diagnosis.seconds.limits_s.items()
        ]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in reached)
        console.print(
            Text(f"  of the hardware's limit (bandwidth in generation, else operations): {shares}", style="dim")
        )
        for note in diagnosis.seconds.notes:
            console.print(Text(f"  {note}", style="dim"))
    if diagnosis.placements:
        console.print(Text("placements that fit, and are faster or cheaper"))
        drawn = table(("placement", ">a step", ">speed", ">GPU s a step"))
        for placed in diagnosis.placements:
            speed, taken = f"{placed.gain:.2f}x", f"{placed.gpu_seconds:,.0f}"
            drawn.add_row(placed.name, seconds(placed.step_s), speed, taken)
        console.print(drawn)
        for placed in diagnosis.placements if explain else diagnosis.placements[:1]:
            console.print(Text(f"  {placed.name}: {changes_text(setup, placed.changes)}"))
    if explain:
        console.print(Text("memory by phase (fullest GPU, fullest host)"))
        drawn = table(("phase", "place", ">step", "whose", ">needs", ">has", ">share"))
        for use in diagnosis.uses:
            share = f"{use.needed_bytes / use.capacity_bytes:.0%}"
            needs, has = bytes_text(use.needed_bytes), bytes_text(use.capacity_bytes)
            drawn.add_row(use.phase, use.where, str(use.step), use.side, needs, has, share)
        console.print(drawn)
    if named := ", ".join(_defaults(diagnosis)):
        console.print(Text(f"not said, so {setup.framework}'s default: {named}", style="dim"))


def _defaults(diagnosis: Diagnosis) -> Iterator[str]:
    """What was not said and matters, as the option that would say it, or in words."""
    setup = diagnosis.setup
    chosen = {"tp", "pp", "ep", "cp", "rollout_tp"} if diagnosis.layout_taken else set()
    options = {_ATTRIBUTES.get(name, name): f"--{name.replace('_', '-')}" for name in _SAID_BY_OPTIONS}
    for name in setup.defaulted:
        value = getattr(setup, name)
        if value is None or name in chosen:
            continue
        if name in ("optimizer_at", "weights_at"):
            what = "optimizer's states" if name == "optimizer_at" else "weights"
            yield f"{what} on the {'host while engines decode' if value == 'between' else value}"
        elif name == "recompute":
            yield f"recomputation {value}"
        elif name == "reference":
            yield "a reference model" if value else "no reference model"
        elif name == "colocated":
            yield "engines and trainer share GPUs" if value else "engines have GPUs of their own"
        elif name in options and (value != 1 or name in ("prompts", "samples", "micro_batch_samples")):
            yield f"{options[name]} {value}"


def _head(diagnosis: Diagnosis) -> Iterator[str]:
    from ..planner.doctor.diagnose import PHASE_NAMES, use_name

    setup, first = diagnosis.setup, diagnosis.first
    beside = f" x dp {setup.rollout_dp}" if setup.rollout_dp > 1 else ""
    where = "share GPUs" if setup.colocated else f"apart: {setup.train_gpus} train, {setup.rollout_gpus} decode"
    yield (
        f"{setup.framework} {setup.version}".rstrip()
        + f": {setup.model} ({diagnosis.architecture.parameters / 1e9:.1f}e9) "
        f"on {setup.nodes} x {setup.gpus_per_node} {setup.gpu}, {where}; {setup.backend} tp {setup.tp} pp {setup.pp} "
        f"cp {setup.cp} ep {setup.ep}, {count(setup.engines, 'engine')} of tp {setup.rollout_tp}{beside}"
    )
    if first is None and diagnosis.is_impossible:
        yield "cannot run: the layout does not divide; its memory would fit"
    elif first is None:
        tightest = max(diagnosis.uses, key=lambda use: use.needed_bytes / use.capacity_bytes)
        share = tightest.needed_bytes / tightest.capacity_bytes
        place = "a GPU" if tightest.where == "device" else "a host"
        phase, has = PHASE_NAMES[tightest.phase], bytes_text(tightest.capacity_bytes)
        yield f"fits: {place} is fullest in {phase}, {share:.0%} of {has}"
    else:
        yield f"does not fit; first of all: {use_name(first)}"
    if setup.host_bytes is None:
        yield "hosts are not judged; --host-gb says what a node has"
