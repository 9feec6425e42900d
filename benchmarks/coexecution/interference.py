"""By how much two cores slow each other when both compute: cores of a virtual machine may be threads of one real core.

Measured with the demo's model and without the executor: one process decodes on core 0, another trains on core 1, each
alone and both at once. The workload states it as `rules.interference`.

    python -m benchmarks.coexecution.interference MODEL CORE {decode,train} SECONDS    a process that computes
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 8.0
"""Of each measurement."""

WARM_S = 2.0
DECODED, TRAINED = 256, (4, 160)
"""Sequences that are decoded at once; sequences of a micro-batch that is trained, and their tokens."""


def measure_interference(model: Path) -> float:
    """Mean share by which a decoding and a training process take longer when both run; 0 if they do not."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    loads = list(zip(("decode", "train"), cores, strict=True))
    alone = [rates(model, [load])[0] for load in loads]
    both = rates(model, loads)
    return max(0.0, sum(one / two - 1 for one, two in zip(alone, both, strict=True)) / len(loads))


def rates(model: Path, loads: list[tuple[str, int]]) -> list[float]:
    """Passes per second of processes of these (kind, core), all at once."""
    command = [sys.executable, "-m", f"{__package__}.interference", str(model)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(core), kind, str(SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )
        for kind, core in loads
    ]  # fmt: skip
    for process in running:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()  # it has imported and loaded
    for process in running:
        process.stdin.write("go\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    return [float(process.communicate()[0]) for process in running]


def main(model: str, core: str, kind: str, seconds: str) -> None:
    """Compute for so many seconds when told to; print passes per second."""
    os.sched_setaffinity(0, {int(core)})
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    policy = AutoModelForCausalLM.from_pretrained(model)
    shape = (DECODED, 1) if kind == "decode" else TRAINED
    tokens = torch.randint(0, policy.config.vocab_size, shape)

    def one_pass() -> None:
        with torch.set_grad_enabled(kind == "train"):
            logits = policy(tokens, use_cache=False).logits
        if kind == "train":
            logits.float().logsumexp(-1).mean().backward()

    one_pass()
    print("ready", flush=True)
    sys.stdin.readline()
    warm_end = time.perf_counter() + WARM_S
    while time.perf_counter() < warm_end:
        one_pass()
    began, passes = time.perf_counter(), 0
    while time.perf_counter() - began < float(seconds):
        one_pass()
        passes += 1
    print(passes / (time.perf_counter() - began))


if __name__ == "__main__":
    main(*sys.argv[1:])
