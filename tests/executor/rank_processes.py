"""Ranks of a test, a process each. They are forked from a process that has imported what they all need: to import
PyTorch and transformers takes several times as long as most ranks compute."""

import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "transformers.models.auto.modeling_auto"]
    + [f"transformers.models.{family}.modeling_{family}" for family in ("qwen2", "qwen3", "qwen3_moe", "llama")]
    + ["pytest", "rlplan.executor.trainer.trainer_rank"]
)


def run_script(arguments: Sequence[str], said: Path) -> None:
    """Run a script in this process, as `python ARGUMENTS` does; what it says on standard error goes to a file."""
    with said.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = list(arguments)
    runpy.run_path(arguments[0], run_name="__main__")


def run_ranks(script: str, arguments: Sequence[str], ranks: int, folder: Path, deadline_s: float) -> None:
    """Run `script ARGUMENTS... RANK` once for each rank, all at once; asserts that all end well within the deadline."""
    said = [folder / f"rank-{rank}.err" for rank in range(ranks)]
    processes = [
        CONTEXT.Process(target=run_script, args=([script, *arguments, str(rank)], said[rank]), daemon=True)
        for rank in range(ranks)
    ]
    end_s = time.monotonic() + deadline_s
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(max(0.0, end_s - time.monotonic()))
        assert [process.exitcode for process in processes] == [0] * ranks, "\n".join(
            file.read_text() for file in said if file.exists()
        )
    finally:
        for process in processes:
            process.kill()
