"""One rank of `trainer_layouts`: it takes steps, or loads a model, and writes what it measured.

python -m benchmarks.trainer_rank_process step|load MODEL TP SP MICRO_BATCH_TOKENS RANKS FOLDER RANK
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlplan.executor.trainer.policy.chunked_head import ChunkedHead
from rlplan.executor.trainer.policy.load_policy import load_policy
from rlplan.executor.trainer.policy.local_tensors import local
from rlplan.executor.trainer.policy.packed_rows import packed_logprobs, packed_row
from rlplan.executor.trainer.policy.rank_mesh import join
from rlplan.executor.trainer.samples import TrainSample, pack, pair_share
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.schema.algorithm import Algorithm

FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 384}),
}
SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 768,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
LARGE = SMALL | {
    "hidden_size": 1024,
    "num_hidden_layers": 20,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 16384,
}
PROMPTS, SAMPLES, LONGEST = 4, 4, 700
TEMPERATURE = 0.9
REFERENCE = "reference.safetensors"


def write_model(family: str, folder: Path, sizes: dict[str, Any], dtype: str = "float32") -> tuple[int, int]:
    """Write a model with random weights; (its parameters, those of a layer)."""
    import transformers

    torch.manual_seed(3)
    name, more = FAMILIES[family]
    config = getattr(transformers, name)(**sizes, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="200MB")
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    return count(model), count(model.model.layers[0])


def groups(vocabulary: int) -> list[list[TrainSample]]:
    """Groups of samples with a tail of lengths, all with an advantage."""
    rng = random.Random(5)
    made = []
    for number in range(PROMPTS):
        prompt = [rng.randrange(vocabulary) for _ in range(20)]
        group = []
        for sample in range(SAMPLES):
            length = min(LONGEST, 20 + int(rng.lognormvariate(5.0, 1.0)))
            tokens = [rng.randrange(vocabulary) for _ in range(length)]
            group.append(
                TrainSample(f"p{number}", sample, prompt, tokens, [-8.3] * length, float(sample % 2), truncated=False)
            )
        made.append(group)
    return made


def config_of(model: Path, micro_batch_tokens: int, **sizes: int) -> TrainerConfig:
    """The trainer of the benchmark; `sizes` of its configuration, 1 where there are none."""
    algorithm = Algorithm(name="grpo", learning_rate=1e-6, loss_aggregation="token-mean")
    divisors = Divisors(float(PROMPTS * SAMPLES), 3000.0, LONGEST)
    update = UpdateSettings(micro_batch_tokens)
    return TrainerConfig(str(model), algorithm, update, SAMPLES, TEMPERATURE, divisors, **sizes)


def write_reference(model: Path, micro_batch_tokens: int) -> None:
    """Write the gradients of one rank beside the model."""
    trainer = Trainer(config_of(model, micro_batch_tokens))
    save_file(trainer.gradients(groups(SMALL["vocab_size"])), model / REFERENCE)


def chunked(model: Path, micro_batch_tokens: int) -> dict[str, float]:
    """Largest difference of log-probabilities, and of gradients, between logits in small chunks and whole ones."""
    samples = [s for group in groups(SMALL["vocab_size"]) for s in group][:3]
    row = packed_row([(s.prompt_tokens, s.response_tokens) for s in samples], torch.device("cpu"))
    results = []
    for rows in (50, 10**9):
        policy: Any = load_policy(str(model), "float32", torch.device("cpu"))
        logprobs = packed_logprobs(policy, ChunkedHead(policy, TEMPERATURE, rows), row).logprobs
        torch.autograd.backward(logprobs.mean())
        results.append((logprobs.detach(), {name: p.grad for name, p in policy.named_parameters()}))
    (small, in_chunks), (large, whole) = results
    return {
        "loss_difference": (small.mean() - large.mean()).abs().item(),
        "gradient_max_diff": difference(in_chunks, whole),
    }


def difference(gradients: dict[str, Any], reference: dict[str, Any]) -> float:
    """Largest difference of an element, in shares of its gradient's largest element."""
    return max(
        ((gradients[name] - value).abs().max() / value.abs().max().clamp(min=1e-12)).item()
        for name, value in reference.items()
    )


def peak_beyond_start(work: Callable[[], Any]) -> tuple[int, Any]:
    """The most memory that this process held in RAM while `work` ran, beyond what it held at its start; its result.

    From the kernel's high-water mark (Linux). torch's profiler would not do: it does not see what gloo's threads free.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the mark to what is held now
    result = work()
    return status_bytes("VmHWM") - before, result


def step(model: Path, micro_batch_tokens: int, folder: Path, rank: int, **sizes: int) -> dict[str, Any]:
    """Gradients and memory of this rank's steps, in all settings."""
    method = f"file://{folder}/meeting-point" if sizes["ranks"] > 1 else None
    config = config_of(model, micro_batch_tokens, **sizes)
    trainer = Trainer(config, rank, method)
    kept = [local(p.detach()) for p in trainer._model.parameters()] + list(trainer._optimizer.tensors())
    held = sum(tensor.nbytes for tensor in kept)
    del kept
    batch, reference = groups(SMALL["vocab_size"]), load_file(model / REFERENCE)
    ways = [UpdateSettings(micro_batch_tokens, *way) for way in itertools.product((False, True), repeat=2)]
    # Before any step: all gradients are of the same weights.
    differences = [difference(trainer.gradients(batch, update), reference) for update in ways]
    samples = [sample.tokens for group in batch for sample in group]
    packed = pack(samples, micro_batch_tokens, config.dp, pair_share(trainer._model.config))
    rows = [sum(samples[i] for i in micro_batch) for replica in packed for micro_batch in replica]
    figures = []
    for update, far in zip(ways, differences, strict=True):
        trainer.step(batch, update)  # what is made at a first step stays
        peak, metrics = peak_beyond_start(lambda u=update: trainer.step(batch, u))  # type: ignore[misc]
        figures.append(
            {
                "gradient_max_diff": far,
                "peak_bytes": held + peak - trainer._optimizer.host_bytes,
                "micro_batches": int(metrics["micro_batches"]),
                "row_tokens": max(rows),
            }
        )
    trainer.close()
    return {"settings": figures}


def load(model: Path, ranks: int, folder: Path, rank: int) -> dict[str, Any]:
    """The most private memory that loading took, in bytes; pages of files that are mapped are the kernel's."""
    torch.set_num_threads(1)
    mesh = join(rank, ranks, 1, 1, torch.device("cpu"), f"file://{folder}/meeting-point")
    import transformers  # noqa: F401 (its own memory is not the model's)

    gc.collect()
    before, peak, done = status_bytes("RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], status_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    policy = load_policy(str(model), "float32", torch.device("cpu"), mesh)
    parts = [local(p.detach()) for p in policy.parameters()]
    assert all(bool(torch.isfinite(part).all()) for part in parts)  # read all, so that all is in memory
    done.set()
    watcher.join()
    # Private memory: pages of the model's files that are mapped are the kernel's to keep or drop.
    return {"peak_bytes": peak[0] - before, "held_bytes": sum(part.nbytes for part in parts)}


def status_bytes(key: str) -> int:
    """A figure of this process's memory, from /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def main() -> None:
    """Measure and write the result."""
    task, model, *sizes, tokens, ranks, folder, rank = sys.argv[1:]
    home = Path(folder)
    if task == "step":
        tp, sp, copies = map(int, sizes)
        shared = {"ranks": int(ranks), "tp": tp, "sp": sp, "state_copies": copies}
        figures = step(Path(model), int(tokens), home, int(rank), **shared)
    else:
        figures = load(Path(model), int(ranks), home, int(rank))
    (home / f"rank-{rank}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
