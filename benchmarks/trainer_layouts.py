"""Gradients and memory of the trainer in every layout on CPU ranks, against one rank and against the law of the plan.

    python -m benchmarks.trainer_layouts [--family qwen2] [--tied] [--json]

Each layout is a set of processes that hold the real trainer. `gradient_max_diff`: largest difference of a gradient's
element from one rank's without recomputation and offload, over the largest element of that gradient, in float32.
`peak_bytes`: weights and moments, and the most memory that a rank held beyond them while it took a step, by the
kernel's count (the fullest rank); moments that are offloaded lie in host memory, which on a CPU is the same, so their
bytes are taken off. `predicted_bytes`: the same by profiles/laws/rank_memory.py. `chunked`: a loss whose logits come in
chunks beside one whose logits are whole. `loading`: the most private memory that each of two ranks took as it loaded a
bfloat16 model of 300 million parameters, in shares of the whole model in float32 plus one layer.

    {"layouts": {"1 rank": {"gradient_max_diff": …, "peak_bytes": …, "predicted_bytes": …}, …},
     "chunked": {"loss_difference": …, "gradient_max_diff": …},
     "loading": {"ranks": 2, "parameters": …, "peak_bytes": […], "share_of_whole_plus_layer": …}}
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from rlplan.plans.facts.model_shape import architecture_from_config
from rlplan.plans.schema.levers import UpdateLayout
from rlplan.profiles.laws.rank_memory import rank_peak_bytes

from . import trainer_rank_process as process
from .entry import as_json_option, run, tell

LAYOUTS = {
    "1 rank": {"dp": 1},
    "fsdp 2": {"dp": 2},
    "tp 2": {"dp": 1, "tp": 2},
    "fsdp 2 x tp 2": {"dp": 2, "tp": 2},
    "sp 2": {"dp": 1, "sp": 2},
    "fsdp 2 x 2 copies": {"dp": 4, "state_copies": 2},
}
MICRO_BATCH_TOKENS = 1024
DEADLINE_S = 900


def name_of(layout: str, recompute: bool, offload: bool) -> str:
    """Name of a layout with its settings."""
    return layout + ", recompute" * recompute + ", offload" * offload


def ranks(count: int, arguments: list[str], folder: Path) -> list[dict[str, Any]]:
    """What each of `count` processes of trainer_rank_process wrote. Raises RuntimeError with the errors of those that
    failed."""
    command = [sys.executable, "-m", "benchmarks.trainer_rank_process", *arguments, str(count), str(folder)]
    # Memory of tensors goes back to the kernel when they are freed, so that what is held is what is needed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    root = Path(__file__).resolve().parents[1]
    started = [
        subprocess.Popen([*command, str(rank)], cwd=root, env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    try:
        errors = [each.communicate(timeout=DEADLINE_S)[1] for each in started]
    finally:
        for each in started:
            each.kill()
    if any(each.returncode for each in started):
        raise click.ClickException("a rank failed:\n" + "\n".join(error[-2000:] for error in errors))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(count)]


def measured(model: Path, layout: str, sizes: dict[str, int], folder: Path) -> dict[str, dict[str, float]]:
    """The figures of one layout in all settings."""
    folder.mkdir()
    count = sizes["dp"] * sizes.get("tp", 1) * sizes.get("sp", 1)
    shared = [str(sizes.get(name, 1)) for name in ("tp", "sp", "state_copies")]
    written = ranks(count, ["step", str(model), *shared, str(MICRO_BATCH_TOKENS)], folder)
    architecture = architecture_from_config(json.loads((model / "config.json").read_text()))
    figures = {}
    for number, (recompute, offload) in enumerate(itertools.product((False, True), repeat=2)):
        of_ranks = [each["settings"][number] for each in written]
        fullest = max(of_ranks, key=lambda of_rank: of_rank["peak_bytes"])
        update = UpdateLayout(
            **sizes,
            micro_batch_tokens=MICRO_BATCH_TOKENS,
            recompute="full" if recompute else "none",
            offload=offload,
        )
        figures[name_of(layout, recompute, offload)] = {
            "gradient_max_diff": of_ranks[0]["gradient_max_diff"],
            "peak_bytes": fullest["peak_bytes"],
            "predicted_bytes": rank_peak_bytes(
                architecture,
                update,
                "float32",
                "cpu",
                tokens=fullest["row_tokens"],
                micro_batches=fullest["micro_batches"],
            ),
        }
    return figures


def loading(folder: Path) -> dict[str, Any]:
    """Memory of two ranks that load a large model."""
    model = folder / "large"
    parameters, layer = process.write_model("llama", model, process.LARGE, "bfloat16")
    written = ranks(2, ["load", str(model), "0"], folder)
    peaks = [each["peak_bytes"] for each in written]
    whole = 4 * (parameters + layer)
    return {
        "ranks": 2,
        "parameters": parameters,
        "peak_bytes": peaks,
        "share_of_whole_plus_layer": max(peaks) / whole,
    }


@click.command()
@click.option("--family", type=click.Choice(sorted(process.FAMILIES)), default="qwen2", help="Family of the model.")
@click.option("--tied", is_flag=True, help="One matrix is embedding and head.")
@click.option("--layouts", default=",".join(LAYOUTS), help="Which layouts, by name, with commas.")
@click.option("--loading/--no-loading", "with_loading", default=True, help="Whether to measure loading.")
@as_json_option
def main(family: str, tied: bool, layouts: str, with_loading: bool, as_json: bool) -> None:
    """Gradients and memory of the trainer in every layout, on CPU ranks."""
    chosen = [name.strip() for name in layouts.split(",")]
    unknown = [name for name in chosen if name not in LAYOUTS]
    if unknown:
        raise click.BadParameter(f"no layout {', '.join(unknown)}; there are {', '.join(LAYOUTS)}")
    figures: dict[str, Any] = {"layouts": {}}
    with tempfile.TemporaryDirectory(prefix="rlplan-layouts-") as home:
        model = Path(home) / "model"
        process.write_model(family, model, process.SMALL | {"tie_word_embeddings": tied})
        process.write_reference(model, MICRO_BATCH_TOKENS)
        figures["chunked"] = process.chunked(model, MICRO_BATCH_TOKENS)
        for number, name in enumerate(chosen):
            click.echo(f"{name}: {number + 1} of {len(chosen)}", err=True)
            figures["layouts"] |= measured(model, name, LAYOUTS[name], Path(home) / f"layout-{number}")
        if with_loading:
            click.echo("loading", err=True)
            figures["loading"] = loading(Path(home))
    lines = [
        f"{name:36} gradients differ by {row['gradient_max_diff']:.1e}; peak {row['peak_bytes'] / 1e6:7.1f} MB, "
        f"predicted {row['predicted_bytes'] / 1e6:7.1f} MB ({row['predicted_bytes'] / row['peak_bytes']:.2f}x)"
        for name, row in figures["layouts"].items()
    ]
    lines.append(f"chunked loss: differs by {figures['chunked']['loss_difference']:.1e}")
    if with_loading:
        share = figures["loading"]["share_of_whole_plus_layer"]
        lines.append(f"loading on 2 ranks: at most {share:.0%} of the whole float32 model plus one layer")
    tell(figures, as_json, lines)


if __name__ == "__main__":
    run(main)
