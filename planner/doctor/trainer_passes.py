"""Seconds of another trainer's passes over a round's samples: scoring them, and updating the weights.

A pass takes what the training law says of the tokens and their pairs, of micro-batches and of pipeline bubbles. What
other trainers do otherwise is physics too: weights that stay gathered (Megatron, ZeRO 1 and 2) cost no micro-batch a
gather, samples that are not packed are padded, an optimizer on the host steps at the host's rate, and states that leave
the device between phases cross the host's link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.schema.levers import UpdateLayout
from ...profiles.hardware import Gpu
from ...profiles.laws.rank_memory import rank_parameters
from ...profiles.laws.train_error import parallel_factor
from ...profiles.laws.train_law import BACKWARD, FILL, IMBALANCE, OPTIMIZER_BYTES, STEP_S, TrainPhysics
from ...profiles.phase_schema import TrainLaw
from .rank_states import update_layout

CPU_ADAM_S = 0.45e-9
"""Seconds of one host for one parameter of an optimizer that steps there: 10 s for 72e9 parameters on four hosts
(DeepSpeed#6834), 9.6 s for 107e9 on four (slime#1139)."""

PASSES = {"old_logprobs": 1.0, "reference": 1.0, "update": 1.0 + BACKWARD}
"""Passes over the layers, in forward ones, by phase; recomputation aside."""


@dataclass(frozen=True)
class TrainerPasses:
    """The passes of a trainer over a round's samples.

    Attributes:
        tokens, squares: sums over the samples as the trainer computes them, padding included.
        useful, useful_squares: of their own tokens.
        micro_tokens: of a micro-batch, mean.
        steps: optimizer steps.
        zero: as in `TrainerSetup`.
        frozen: weights have no gradients (LoRA): the backward pass has that of the activations alone, nothing of the
            weights is reduced, and the optimizer's share is nothing.
    """

    physics: TrainPhysics
    layout: UpdateLayout
    tokens: float
    squares: float
    useful: float
    useful_squares: float
    micro_tokens: float
    steps: int
    zero: int
    frozen: bool

    def _pass_s(self, token_s: float, pair_s: float, micro_s: float, begins: int) -> float:
        """Seconds of a pass that waits for its last replica `begins` times: tokens, micro-batches, pipeline bubbles."""
        dp, pp = self.layout.dp, self.layout.pp
        work = (token_s * self.tokens + pair_s * self.squares) / dp
        micros = max(begins * 1.0, self.tokens / dp / self.micro_tokens + begins / 2)
        each = work / micros + micro_s
        waited = IMBALANCE * math.log2(dp) if dp > 1 else 0.0
        return work + micros * micro_s + begins * (pp - 1 + waited) * each

    def score_s(self) -> float:
        """Seconds of a forward pass over all samples."""
        token, pair, micro = self.physics.scored(self.layout)
        if self.zero < 3:
            micro -= self._gathered_s(0.25)
        return self._pass_s(token, pair, micro, 1)

    def update_s(self, setup: TrainerSetup) -> float:
        """Seconds of all optimizer steps with their passes."""
        physics, layout = self.physics, self.layout
        token, micro, step = physics.token_s(layout), physics.micro_batch_s(layout), physics.step_s(layout)
        if self.frozen:
            token *= 1 - 1 / physics.passes(layout)
            micro -= self._gathered_s(1.0 if self.zero < 3 else 4 / 8)
            step = physics.factors["step"] * STEP_S
        elif self.zero < 3:  # weights stay; gradients are reduced and new weights gathered once a step
            micro -= self._gathered_s(1.0)
            step += self._gathered_s(6 / 8)
        if setup.optimizer_at == "host" and not self.frozen:
            shard = rank_parameters(physics.architecture, layout)
            nodes = max(1, setup.train_gpus // setup.gpus_per_node)
            crossed = 6 * shard / physics.gpu.host_copy_bytes_per_s
            step += CPU_ADAM_S * physics.architecture.parameters / nodes + crossed
            step -= shard * OPTIMIZER_BYTES / physics.gpu.memory_bytes_per_s
        work = self._pass_s(token, physics.pair_s(layout), micro, self.steps)
        return work + self.steps * step

    def _gathered_s(self, share: float) -> float:
        """Seconds to move a share of what FSDP moves of a rank's weights in a micro-batch, where not hidden."""
        moved = self.physics.micro_batch_s(self.layout) - replace(
            self.physics, factors={**self.physics.factors, "gather": 0.0}
        ).micro_batch_s(self.layout)
        return share * moved

    def moves_s(self, setup: TrainerSetup) -> float:
        """Seconds a step in which states that are on the device between phases only go to the host and come back."""
        shard = rank_parameters(self.physics.architecture, self.layout)
        weights = (4.0 if self.zero == 3 else 2.0 * self.layout.shard_ranks) * shard
        optimizer = (8.0 if self.zero == 3 else 12.0) * shard
        crossed = weights * (setup.weights_at == "between") + optimizer * (setup.optimizer_at == "between")
        return 2 * crossed / self.physics.gpu.host_copy_bytes_per_s

    def limit_s(self, name: str) -> float:
        """Seconds of a pass's operations, recomputation aside, at the GPUs' peak."""
        a = self.physics.architecture
        passes = PASSES[name] - (self.frozen and name == "update")
        flops = passes * 2 * a.active_parameters * self.useful
        flops += PASSES[name] * a.attention_flops_per_pair / 2 * self.useful_squares
        return flops / (self.layout.accelerators * self.physics.gpu.bf16_flops)


def trainer_passes(
    setup: TrainerSetup, law: TrainLaw, model: Architecture, gpu: Gpu, samples: NDArray[np.float64]
) -> TrainerPasses:
    """The trainer of a set-up before samples of so many tokens, prompts included, as the law has it."""
    computed = samples
    if setup.micro_batch_tokens is None:
        size = max(1, setup.micro_batch_samples or 1)
        if setup.pads:
            longest = np.maximum.reduceat(samples, np.arange(0, len(samples), size))
            computed = np.repeat(longest, size)[: len(samples)]
        micro = size * float(computed.mean())
    else:
        micro = FILL * max(setup.micro_batch_tokens * setup.cp * setup.sp, float(samples.max()))
    copies = setup.dp * setup.cp * setup.sp // (setup.shard_ranks or setup.dp * setup.cp * setup.sp)
    layout = update_layout(
        setup, max(1, round(micro)), ep=setup.ep, state_copies=max(1, copies), recompute=setup.recompute
    )
    shared, others = setup.backend == "megatron", parallel_factor(law)
    physics = TrainPhysics(model, gpu, law.factors, law.fabric_bytes_per_s, setup.gpus_per_node, others, shared)
    mini = setup.mini_batch_samples or len(samples)
    return TrainerPasses(
        physics,
        layout,
        float(computed.sum()),
        float((computed**2).sum()),
        float(samples.sum()),
        float((samples**2).sum()),
        micro,
        max(1, math.ceil(len(samples) / mini)),
        setup.zero,
        setup.lora_rank > 0,
    )
