"""Speed of one rank of the trainer beside a GRPO update on transformers and accelerate: same model, batch and loss.

    python -m benchmarks.trainer_speed [--prompts N] [--steps N] [--json]

The model is a small Qwen2 with random weights (hidden 256, 4 layers, 4 heads of 64 with 2 key-value heads, vocabulary
8,192), in float32, on one thread of a CPU. The batch is N prompts with 8 responses each (64 by default: 8 x 8), with a
median of 200 response tokens and a tail up to 1,500. Both have 4,096 tokens a micro-batch, which for the peer includes
padding; accelerate_peer.py says what the peer does. Rewards differ within each group, so every sample has a gradient:
rlplan leaves out the backward pass of those without, which is not counted here.

The two take turns, step by step, and change who is first. Time is CPU seconds of the process: with one thread that is
the time on a machine which does nothing else. The first step of either is left out. Needs the extra `rlplan[peer]`.

    {"tokens_per_s": {"rlplan": …, "accelerate": …}, "ratio": …, "gradient_max_diff": …, "gradient_max": …,
     "padding_share": …, "tokens": …, "steps": …}

- `tokens_per_s`: tokens of prompts and responses, without padding, per second of optimizer steps.
- `gradient_max_diff`: largest difference of any element of the gradients before the first step, whose largest is
  `gradient_max`.
- `padding_share`: share of the peer's tokens that are padding.
"""

from __future__ import annotations

import importlib.util
import math
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import click
import torch

from rlplan.executor.trainer.train_samples import TrainSample
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.executor.trainer.trainer_rank import Trainer
from rlplan.plans.schema.algorithm import Algorithm

from .entry import as_json_option, run, tell

MODEL = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
MEDIAN_TOKENS, SPREAD, LONGEST_TOKENS = 200, 0.9, 1500  # of responses; spread: of the logarithm
PROMPT_TOKENS = (20, 60)
SAMPLES = 8  # responses to a prompt
MICRO_BATCH_TOKENS = 4096
ENGINE_NOISE = 1e-3  # nats by which log-probabilities of engine and trainer differ


class Measured(NamedTuple):
    """CPU seconds of each step of both sides, the first included, and the gradients of both before it."""

    rlplan_s: list[float]
    accelerate_s: list[float]
    gradient_max_diff: float
    gradient_max: float


def write_model(folder: Path, settings: dict[str, Any]) -> str:
    """Save a Qwen2 with random weights; returns its path."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**settings)).save_pretrained(folder)
    return str(folder)


def response_lengths(count: int) -> list[int]:
    """Quantiles of a lognormal law, cut at the longest: the same tail whatever the seed."""
    normal = NormalDist(math.log(MEDIAN_TOKENS), SPREAD)
    return [min(LONGEST_TOKENS, round(math.exp(normal.inv_cdf((i + 0.5) / count)))) for i in range(count)]


def batch(prompts: int, vocabulary: int, seed: int = 0) -> list[list[TrainSample]]:
    """Groups of a step; log-probabilities are near those of a policy that knows nothing."""
    rng = random.Random(seed)
    lengths = response_lengths(prompts * SAMPLES)
    rng.shuffle(lengths)
    groups = []
    for number in range(prompts):
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(*PROMPT_TOKENS))]
        group = []
        for sample in range(SAMPLES):
            response = [rng.randrange(vocabulary) for _ in range(lengths.pop())]
            logprobs = [-math.log(vocabulary) + rng.gauss(0, ENGINE_NOISE) for _ in response]
            reward = float(sample % 2)
            group.append(TrainSample(f"p{number:04d}", sample, prompt, response, logprobs, reward, truncated=False))
        groups.append(group)
    return groups


def trainer_config(model: str, groups: list[list[TrainSample]]) -> TrainerConfig:
    """GRPO with its paper's settings, on one thread."""
    algorithm = Algorithm.model_validate(
        {
            "name": "grpo",
            "learning_rate": 1e-6,
            "weight_decay": 0.01,
            "betas": (0.9, 0.95),
            "max_grad_norm": 1.0,
            "seed": 0,
        }
    )
    samples = [s for group in groups for s in group]
    divisors = Divisors(len(samples), sum(len(s.response_tokens) for s in samples), LONGEST_TOKENS)
    return TrainerConfig(model, algorithm, UpdateSettings(MICRO_BATCH_TOKENS), SAMPLES, 1.0, divisors)


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process for `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(settings: dict[str, Any], groups: list[list[TrainSample]], steps: int) -> Measured:
    """Let both take `steps` steps in turns."""
    from .accelerate_peer import AcceleratePeer

    with tempfile.TemporaryDirectory(prefix="rlplan-trainer-speed-") as folder:
        config = trainer_config(write_model(Path(folder), settings), groups)
        ours, peer = Trainer(config), AcceleratePeer(config)
    gradients, theirs = ours.gradients(groups), peer.gradients(groups)
    assert set(gradients) == set(theirs), "both hold the same parameters"
    sides: list[tuple[Callable[[], object], list[float]]] = [
        (lambda: ours.step(groups), []),
        (lambda: peer.step(groups), []),
    ]
    for step in range(steps):
        for work, seconds in sides if step % 2 == 0 else reversed(sides):
            seconds.append(cpu_seconds(work))
        click.echo(f"step {step + 1}/{steps}: {sides[0][1][-1]:.2f} s, accelerate {sides[1][1][-1]:.2f} s", err=True)
    ours.close()
    return Measured(
        sides[0][1],
        sides[1][1],
        max((gradients[name] - theirs[name]).abs().max().item() for name in gradients),
        max(gradient.abs().max().item() for gradient in gradients.values()),
    )


def report(measured: Measured, groups: list[list[TrainSample]]) -> dict[str, Any]:
    """The JSON document; the first step of either side is left out."""
    from .accelerate_peer import padding_share

    lengths = [s.tokens for group in groups for s in group]
    steps = len(measured.rlplan_s) - 1
    tokens = sum(lengths) * steps
    ours, theirs = tokens / sum(measured.rlplan_s[1:]), tokens / sum(measured.accelerate_s[1:])
    return {
        "tokens_per_s": {"rlplan": ours, "accelerate": theirs},
        "ratio": ours / theirs,
        "gradient_max_diff": measured.gradient_max_diff,
        "gradient_max": measured.gradient_max,
        "padding_share": padding_share(lengths, MICRO_BATCH_TOKENS),
        "tokens": sum(lengths),
        "steps": steps,
    }


@click.command()
@click.option("--prompts", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts of a step.")
@click.option("--steps", type=click.IntRange(min=2), default=6, show_default=True, help="Steps; the first is left out.")
@as_json_option
def main(prompts: int, steps: int, as_json: bool) -> None:
    """Tokens per second of one rank of the trainer, beside transformers and accelerate."""
    if importlib.util.find_spec("accelerate") is None:
        raise click.ClickException("accelerate is not installed; run: pip install 'rlplan[peer]'")
    groups = batch(prompts, MODEL["vocab_size"])
    found = report(measure(MODEL, groups, steps), groups)
    speed = found["tokens_per_s"]
    tell(
        found,
        as_json,
        f"rlplan {speed['rlplan']:.0f}, accelerate {speed['accelerate']:.0f} tokens per second of CPU: "
        f"{found['ratio']:.2f}x ({found['steps']} steps of {found['tokens']} tokens; {found['padding_share']:.1%} of "
        f"accelerate's are padding; gradients differ by {found['gradient_max_diff']:.1e}, the largest is "
        f"{found['gradient_max']:.1e})",
    )


if __name__ == "__main__":
    run(main)
