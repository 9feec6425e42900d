"""The demo's job by trainers of several layouts: whether all train the same prompts to the same weights.

    python -m benchmarks.layout_runs [--steps 20] [--layouts "dp 2,tp 2"] [--killed "dp 2 tp 2"] [--json]

One plan of synchronous rounds is run once by one rank (`dp 1`) and once by each layout, in turns on the same engine. A
further run, of the layout `--killed`, loses one rank by SIGKILL in the middle of a step and goes on from its last
checkpoint. The job has `seed_per_sample` and is the demo's with fewer prompts and a lower cap.

Layouts add in other orders, so that weights differ by rounding. AdamW divides each gradient by its own size: where a
gradient is nearly zero its rounding moves the weight as far as any other would. `weights_relative_difference` is the
norm of the difference over the norm of all that `dp 1` moved the weights by; `weights_max_difference` is of the weight
that differs most. A sample whose random draw lies between two rounded probabilities gets another token; from there on
the samples differ: `parted_at_step` is the first step with other prompts, lengths or rewards (null: none).
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from safetensors.torch import load_file

from rlplan.executor.example.write import new_folder, write_example
from rlplan.executor.execute import execute
from rlplan.executor.prepare import Options, prepare
from rlplan.executor.records.checkpoints import checkpoints
from rlplan.executor.trainer.samples import TrainSample
from rlplan.executor.trainer.trainer_config import UpdateSettings
from rlplan.executor.trainer.trainer_group import TrainerGroup
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.run_log import TRACE, RunLog, read_run

from .entry import as_json_option, run, tell
from .example_plans import change_job, shipped_plan
from .faults.verdict import weights

console = Console(stderr=True)

ONE_RANK = "dp 1"
LAYOUTS = "dp 1 micro_batch_tokens 512,dp 2,tp 2,dp 2 tp 2,sp 2"
"""The first is for comparison: what one rank's own rounding comes to where it adds its micro-batches in another way."""
PROMPTS_PER_STEP, MAX_RESPONSE_TOKENS, MICRO_BATCH_TOKENS = 8, 128, 1024
"""Of the shortened job: a step takes about a second; several micro-batches for each replica."""
CHECKPOINT_EVERY = 5
ROUNDING_SHARE = 0.01
"""Runs whose weights differ by a larger share of their way than this were trained differently."""

Weights = dict[str, torch.Tensor]
Sample = tuple[str, int, int, float]


def ranks_of(layout: str) -> dict[str, int]:
    """The keys of a plan's `train` section that a layout as `dp 2 tp 2` names. Raises InputError for any other text."""
    words = layout.split()
    keys = dict(zip(words[::2], words[1::2], strict=False))
    usual = {"dp": 1, "tp": 1, "sp": 1, "micro_batch_tokens": MICRO_BATCH_TOKENS}
    known = all(key in usual and value.isdecimal() and int(value) for key, value in keys.items())
    if not words or 2 * len(keys) != len(words) or not known:
        raise InputError(f"layout {layout!r}: write {', '.join(usual)}, each with its number, as in 'dp 2 tp 2'")
    return usual | {key: int(value) for key, value in keys.items()}


def file_name(layout: str) -> str:
    """The name of a layout's plan and run: `dp-2-tp-2`."""
    return layout.replace(" ", "-")


def write_plans(folder: Path, ranks: dict[str, dict[str, int]]) -> list[Path]:
    """Shorten the example in `folder` and write a plan for each name there, with its ranks; returns their paths."""
    change_job(folder, rollout={"prompts_per_step": PROMPTS_PER_STEP, "max_response_tokens": MAX_RESPONSE_TOKENS})
    # More ranks than cores: this benchmark looks at what they compute, not at how fast.
    cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
    pool = cluster["pools"]["main"]
    most = max(pool["cores"], *(r.dp * r.tp * r.sp for r in ranks.values()))
    pool["accelerators"]["per_node"] = most
    dump(Cluster.model_validate(cluster | {"pools": {"main": pool | {"cores": most}}}), folder / "cluster.yaml")
    document = shipped_plan(folder, "sync").model_dump(mode="json")
    short = document["job"]["rounds"]["short"]
    short["rollout"] |= {"engines": 1, "tp": 1}
    paths = []
    for name, keys in ranks.items():
        short["train"] |= keys
        paths.append(folder / f"{file_name(name)}.yaml")
        dump(Plan.model_validate(document), paths[-1])
    return paths


class Kill:
    """SIGKILL of the last rank of one trainer in the middle of one of its steps."""

    def __init__(self, trainer: str, update: int) -> None:
        self.trainer, self.update = trainer, update
        self.updates = 0
        self.quickest_s = math.inf  # seconds of the quickest update so far
        self.struck = False
        """The rank was killed, and the update that it was in had not ended."""

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Within the block, the trainer's calls of `step` are counted, and the chosen one is struck."""
        step, kill = TrainerGroup.step, self

        async def struck(
            group: TrainerGroup, groups: list[list[TrainSample]], update: UpdateSettings | None = None
        ) -> dict[str, float]:
            if group.name != f"trainer {kill.trainer}":
                return await step(group, groups, update)
            kill.updates += 1
            if kill.updates != kill.update:
                began = time.monotonic()
                metrics = await step(group, groups, update)
                kill.quickest_s = min(kill.quickest_s, time.monotonic() - began)
                return metrics
            pid = (await group.pids())[-1]
            training = asyncio.ensure_future(step(group, groups, update))
            await asyncio.sleep(kill.quickest_s / 3)
            kill.struck = not training.done()
            os.kill(pid, signal.SIGKILL)
            return await training

        TrainerGroup.step = struck  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            TrainerGroup.step = step  # type: ignore[method-assign]


class Progress:
    """Implements `executor.turns.Watcher`: a line for each step."""

    def phase(self, text: str) -> None:
        """Tell that something slow begins."""
        console.print(text)

    def round_begins(self, name: str, kind: str, step: int, progress: Callable[[], Any]) -> None:
        """Nothing to do."""

    def step_done(self, name: str, record: Any) -> None:
        """Tell how long a step took."""
        console.print(f"{name}: step {record.step}, {record.total_s:.2f} s, of it training {record.train_s:.2f} s")

    def note(self, text: str) -> None:
        """Print a line for the user."""
        console.print(text)


def trained(log: RunLog, step: int) -> Counter[Sample]:
    """(prompt, place in its group, tokens, reward) of the samples that a step trained."""
    rows = [row for row in log.samples.get(step, []) if row.fate == "trained"]
    return Counter((row.prompt, row.sample, row.tokens, row.reward) for row in rows)


def compare_samples(reference: RunLog, log: RunLog, steps: int) -> dict[str, Any]:
    """Whether a run trained the prompts and samples of the reference, step by step."""
    wanted, actual = ([trained(each, step) for step in range(1, steps + 1)] for each in (reference, log))
    same = sum((one & other).total() for one, other in zip(wanted, actual, strict=True))
    parted = (step for step in range(1, steps + 1) if wanted[step - 1] != actual[step - 1])
    return {
        "same_prompts": [{s[:2] for s in one} for one in wanted] == [{s[:2] for s in other} for other in actual],
        "same_samples_share": round(same / max(sum(one.total() for one in wanted), 1), 6),
        "parted_at_step": next(parted, None),
    }


def compare_weights(start: Weights, reference: Weights, ours: Weights) -> dict[str, float]:
    """How far two runs' weights are from each other at the end, and that as a share of the reference's way."""

    def flat(tensors: Weights) -> torch.Tensor:
        return torch.cat([tensors[name].flatten().double() for name in sorted(reference)])

    difference, moved = flat(ours) - flat(reference), flat(reference) - flat(start)
    return {
        "weights_max_difference": float(difference.abs().max()),
        "weights_relative_difference": float(difference.norm() / moved.norm()),
    }


def lost_steps(log: RunLog, steps: int) -> int:
    """Steps from 1 to `steps` that the trace has not, or has twice."""
    counts = Counter(step.step for step in log.steps)
    return sum(counts[step] != 1 for step in range(1, steps + 1))


def result(home: Path, layouts: list[str], killed: str | None, steps: int) -> dict[str, Any]:
    """The JSON result of the benchmark, from the folders of its runs."""
    names = [ONE_RANK, *layouts, *([f"{killed} killed"] if killed else [])]
    folders = {name: home / "runs" / file_name(name) for name in names}
    logs = {name: read_run(folder / TRACE) for name, folder in folders.items()}
    ends = {name: weights(checkpoints(folder)[-1]) for name, folder in folders.items()}
    start = load_file(home / "example" / "model" / "model.safetensors")

    def against(reference: str, name: str) -> dict[str, Any]:
        log = logs[name]
        return compare_samples(logs[reference], log, steps) | compare_weights(start, ends[reference], ends[name])

    norms = {name: log.steps[0].metrics["grad_norm"] for name, log in logs.items()}
    document: dict[str, Any] = {"layouts": {}}
    for name in [ONE_RANK, *layouts]:
        document["layouts"][name] = against(ONE_RANK, name) | {
            "first_grad_norm_relative_difference": abs(norms[name] / norms[ONE_RANK] - 1),
            "steps": len(logs[name].steps),
            "lost_steps": lost_steps(logs[name], steps),
            "train_s_p50": round(statistics.median(step.train_s for step in logs[name].steps), 4),
        }
    if killed:
        log = logs[f"{killed} killed"]
        document["killed"] = {
            "layout": killed,
            "restarts": log.restarts,
            "steps": len(log.steps),
            "lost_steps": lost_steps(log, steps),
            "back_at_step": next((event["step"] for event in log.events if event["event"] == "resume"), None),
        } | against(killed, f"{killed} killed")
    return document


def wrong(document: dict[str, Any]) -> list[str]:
    """Texts on each sign that a layout, or the run that lost a rank, trained something else; [] if none did."""
    runs = {name: each for name, each in document["layouts"].items() if name != ONE_RANK}
    if "killed" in document:
        runs["killed"] = document["killed"]
    complaints = [f"{name}: other prompts than one rank's" for name, each in runs.items() if not each["same_prompts"]]
    complaints += [f"{name}: lost or repeated steps" for name, each in runs.items() if each["lost_steps"]]
    complaints += [
        f"{name}: weights differ by {each['weights_relative_difference']:.2g} of their way"
        for name, each in runs.items()
        if not each["weights_relative_difference"] <= ROUNDING_SHARE
    ]
    if "killed" in runs and runs["killed"]["restarts"] != 1:
        complaints.append(f"killed: {runs['killed']['restarts']} restarts and not 1")
    return complaints


@click.command()
@click.option("--steps", type=click.IntRange(min=2), default=20, show_default=True, help="Optimizer steps of each run.")
@click.option("--layouts", default=LAYOUTS, show_default=True, help="Layouts beside one rank, between commas.")
@click.option("--killed", default="dp 2 tp 2", show_default=True, help="The layout that loses a rank; '' for none.")
@click.option("--example", type=click.Path(exists=True, path_type=Path), help="Copy this folder of `rlplan init`.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep plans and runs in this folder, which must be new.")
@as_json_option
def main(steps: int, layouts: str, killed: str, example: Path | None, keep: Path | None, as_json: bool) -> None:
    """Run the demo's job by trainers of several layouts; exit code 1 if one does not train what one rank trains."""
    wanted = [" ".join(layout.split()) for layout in layouts.split(",") if layout.strip()]
    if killed and killed not in wanted:
        raise InputError(f"--killed {killed!r} is not among --layouts, whose run it is compared with; add it there")
    with ExitStack() as stack:
        home = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlplan-layouts-")))
        ranks = {layout: ranks_of(layout) for layout in (ONE_RANK, *wanted)}
        if killed:
            ranks[f"{killed} killed"] = ranks[killed]
        if example:
            with new_folder(home / "example") as building:
                shutil.copytree(example, building, dirs_exist_ok=True)
        else:
            console.print("writing the demo's example")
            write_example(home / "example")
        executions = prepare(write_plans(home / "example", ranks), home / "runs", resume=False)
        kill = Kill(file_name(f"{killed} killed"), update=max(steps * 2 // 3, 2))
        with kill.armed():
            if not execute(executions, Options(steps, checkpoint_every=CHECKPOINT_EVERY), Progress()):
                raise SystemExit(130)
        document = result(home, wanted, killed or None, steps)
    rows = document["layouts"] | ({f"{killed} killed": document["killed"]} if killed else {})
    lines = [
        "\n".join([name, *(f"  {key:36} {value}" for key, value in each.items() if key != "layout")])
        for name, each in rows.items()
    ]
    tell(document, as_json, lines)
    complaints = wrong(document)
    if killed and not kill.struck:
        complaints.append("killed: the step had ended before its rank was killed; run again")
    if complaints:
        console.print("not the same: " + "; ".join(complaints))
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
