"""Writes the demo into a folder: model, data set, job.yaml and cluster.yaml.

All or nothing: the files are made in a hidden folder beside the target, which is renamed when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...plans.schema.cluster import Cluster
from ...plans.schema.job import Job
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import SCHEMA_FOLDER, write_document
from ..processes.host import cpu_name
from . import task

PROMPTS = 2048
HELD_OUT, EVALUATED_EVERY, EVALUATED_SAMPLES = 32, 8, 2
"""Prompts of an evaluation, steps between two, and responses to a prompt. Few: on two cores an evaluation then takes
about as long as half a step."""

MIN_KV_BYTES, MAX_KV_BYTES = 250_000_000, 1_000_000_000


def job_document(seed: int) -> Job:
    """The demo's job.yaml."""
    return Job.model_validate(
        {
            "rlplan_job": 1,
            "name": "keyhunt",
            "model": {"path": "model", "dtype": "float32"},
            "data": {"path": "data.jsonl", "seed": seed},
            "reward": {
                "kind": "function",
                "function": "rlplan.executor.rewards.keyhunt:score",
                "workers": 1,
                "deadline_s": 2.0,
                "retries": 2,
            },
            "rollout": {
                "prompts_per_step": 16,
                "samples_per_prompt": 3,
                "max_prompt_tokens": 192,
                "max_response_tokens": 2048,
                "temperature": 1.0,
                # Plans are to be compared and lengths are heavy-tailed: the same random draws take much noise out.
                "seed_per_sample": True,
            },
            "algorithm": {
                "name": "grpo",
                # High enough for the reward to rise within 20 steps. Adam moves every weight by about this much per
                # step whatever the gradient is, so in many more steps the tries drift too, and the lengths with them
                # (at 4e-5 hard prompts' responses were a fifth longer after 50 steps).
                "learning_rate": 5e-5,
                # One token of a response earns the reward, the tries are noise: a mean over all tokens would let the
                # noise of the few long responses dominate.
                "loss_aggregation": "seq-mean-token-mean",
                # A hunt that the cap cut short is no worse than one that chance let end: it must not be punished.
                "mask_truncated": True,
                "seed": seed,
            },
            "evaluate": {
                "data": "held_out.jsonl",
                "every_steps": EVALUATED_EVERY,
                "samples_per_prompt": EVALUATED_SAMPLES,
            },
            "search": {"tp": [1], "micro_batch_tokens": [4096, 8192]},
            "slo": {"step_p95_s": None},
        }
    )


def detect_cluster() -> Cluster:
    """This machine as a cluster of one node: its GPUs if torch sees any, else the cores that this process may use."""
    import torch

    cores = available_cores()
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    accelerators: dict[str, Any]
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        accelerators = {
            "kind": "cuda",
            "name": "-".join(gpu.name.split()),
            "per_node": torch.cuda.device_count(),
            "memory_bytes": int(gpu.total_memory),
        }
    else:
        # An eighth of the memory per core, within bounds that hold any demo batch and leave room for Ray's store.
        kv_bytes = host_bytes // (8 * cores) // 1_000_000 * 1_000_000
        accelerators = {
            "kind": "cpu",
            "name": cpu_name(),
            "per_node": cores,
            "memory_bytes": max(MIN_KV_BYTES, min(MAX_KV_BYTES, kv_bytes)),
        }
    pool = {
        "nodes": 1,
        "accelerators": accelerators,
        "cores": cores,
        "host_memory_bytes": host_bytes,
        # No machine knows its price. 0.05 USD per core and hour is a usual on-demand price; to be edited.
        "usd_per_node_hour": round(0.05 * cores, 2),
    }
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "this-machine", "pools": {"main": pool}})


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that becomes `folder` at the end of the block, or vanishes if it raises.

    Raises InputError, before anything is written, when `folder` is a file or holds anything, or cannot be made.
    """
    target = Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() would follow a link that is to be replaced
    try:
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise InputError("exists and is no folder; choose another name", str(folder))
        if target.is_dir() and any(target.iterdir()):
            raise InputError("is not empty; choose a new folder, nothing was written", str(folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".rlplan-", dir=target.parent))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", str(folder)) from None
    try:
        yield building
        building.chmod(0o755)  # mkdtemp's folders are private
        if target.is_dir():
            target.rmdir()  # fails, as it should, if somebody put a file there meanwhile
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write_rows(path: Path, letter: str, hunts: Sequence[task.Hunt]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for index, hunt in enumerate(hunts):
            row = {"id": f"{letter}{index:05d}", "prompt": hunt.prompt, "answer": hunt.answer}
            file.write(json.dumps(row) + "\n")


def write_example(
    folder: Path, seed: int = 0, phases: Any = None, on_step: Callable[[int, int, float], None] | None = None
) -> dict[str, Any]:
    """Make the demo in `folder`, which must be new or empty. Raises InputError otherwise, with nothing written.

    Args:
        folder: where to.
        seed: of model, data and training.
        phases: the warm-up's phases (`warmup.PHASES` if None).
        on_step: progress of the warm-up: (updates done, updates in all, loss).

    Returns: facts for the caller to print: folder, files, prompts, parameters, warmup_s, quality, seed, accelerators,
    kind. Raises RuntimeError when the model has not learnt the task.
    """
    with new_folder(folder) as building:
        from transformers.utils.logging import disable_progress_bar

        from . import warmup  # after the cheap checks: this imports torch

        start = time.monotonic()
        # One thread: at this size a second one gains little on an idle machine, costs a lot on a busy one (the two wait
        # for each other at every operation), and would make the model depend on the number of cores.
        model = warmup.warm_up(seed, threads=1, phases=phases or warmup.PHASES, on_step=on_step)
        warmup_s = time.monotonic() - start
        quality = warmup.answer_quality(model, seed)
        # A model that cannot look keys up would train and be timed like any other, and every figure would be void.
        learnt = (
            quality["yes_at_hits"] > 0.99
            and quality["yes_at_misses"] < 1e-3
            and abs(quality["right_values"] - warmup.RIGHT) < 0.1
        )
        if phases is None and not learnt:
            raise RuntimeError(f"the warm-up did not succeed with seed {seed}: {quality}; choose another seed")
        disable_progress_bar()  # one small file
        model.save_pretrained(building / "model")
        warmup.make_tokenizer().save_pretrained(building / "model")
        data = task.draw_data(seed, PROMPTS)
        _write_rows(building / "data.jsonl", "k", data)
        _write_rows(building / "held_out.jsonl", "h", task.draw_held_out(seed, HELD_OUT, data))
        cluster = detect_cluster()
        write_document(cluster, building / "cluster.yaml")
        write_document(job_document(seed), building / "job.yaml")
        accelerators = cluster.pools["main"].accelerators
        return {
            "folder": str(folder),
            "files": sorted(
                name
                for name in (str(p.relative_to(building)) for p in building.rglob("*") if p.is_file())
                if not name.startswith(SCHEMA_FOLDER)
            ),
            "prompts": PROMPTS,
            "parameters": sum(p.numel() for p in model.parameters()),
            "warmup_s": round(warmup_s, 2),
            "quality": {name: round(value, 5) for name, value in quality.items()},
            "seed": seed,
            "accelerators": accelerators.per_node,
            "kind": accelerators.kind,
        }
