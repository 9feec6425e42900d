"""By how much two cores slow each other when both compute: cores of a virtual machine may be threads of one real core.

Measured with the demo's model and without the executor: one process decodes on core 0, another trains on core 1, in
slices of a second's part: decoding alone, training alone, both, again and again. Neighbours on a shared machine slow
all three alike, since they come and go more slowly than slices do.

    python -m benchmarks.coexecution.interference MODEL CORE {decode,train} BEGIN_S    a process that computes
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean

SLICE_S, ROUNDS = 0.4, 100
LOAD_S = 40.0
"""Until the first slice both processes have imported, loaded the model and computed once."""
KINDS = "decode", "train"
DECODED, TRAINED = 256, (4, 160)
"""Sequences that are decoded at once; sequences of a micro-batch that is trained, and their tokens."""


def core_interference(model: Path) -> float:
    """Mean share by which a decoding and a training process take longer when both run; 0 if they do not."""
    begin_s = time.time() + LOAD_S
    running = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.interference", str(model), str(core), kind, str(begin_s)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for kind, core in zip(KINDS, sorted(os.sched_getaffinity(0))[:2], strict=True)
    ]  # fmt: skip
    shares = [float(process.communicate()[0]) for process in running]
    return max(0.0, mean(shares))


def main(model: str, core: str, kind: str, begin_s: str) -> None:
    """Compute in two of three slices from a Unix second on; print by what share a pass takes longer beside another."""
    os.sched_setaffinity(0, {int(core)})
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    policy = AutoModelForCausalLM.from_pretrained(model)
    shape = (DECODED, 1) if kind == "decode" else TRAINED
    tokens = torch.randint(0, policy.config.vocab_size, shape)

    def passes_per_s(slice_begin_s: float) -> float:
        time.sleep(max(0.0, slice_begin_s - time.time()))
        began_s, passes = time.time(), 0
        while passes == 0 or time.time() < slice_begin_s + SLICE_S:
            with torch.set_grad_enabled(kind == "train"):
                logits = policy(tokens, use_cache=False).logits
            if kind == "train":
                logits.float().logsumexp(-1).mean().backward()
            passes += 1
        return passes / (time.time() - began_s)

    passes_per_s(0.0)
    first_s = float(begin_s)
    if time.time() > first_s:
        raise SystemExit(f"the model was not loaded within {LOAD_S:.0f} s, when the measurement began")
    own = KINDS.index(kind)
    alone, both = zip(
        *((passes_per_s(first_s + (3 * n + own) * SLICE_S), passes_per_s(first_s + (3 * n + 2) * SLICE_S))
          for n in range(ROUNDS)),
        strict=True,
    )  # fmt: skip
    print(mean(alone) / mean(both) - 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
