"""The gradients of one step on one rank: groups add theirs as they come, and the optimizer steps when all are there.

Invariants:
- Gradients do not depend on which groups were added together, on the micro-batch split or on the number of ranks,
  beyond rounding: advantages belong to a group, every token's weight in the loss holds the division by constants of the
  plan, and gradients are summed, never averaged.
- No weight changes while gradients are summed.
- `add` and `finish` are collective. Replicas that take no part in an `add` run empty micro-batches beside the others:
  they hold shards of the parameters that the others gather.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from .objective import Objective
from .packing import pack, pair_share
from .policy.chunked_head import ChunkedHead
from .policy.packed_rows import PackedLogprobs, PackedRow, packed_logprobs, packed_row
from .policy.partial_gradients import PartialGradients
from .policy.rank_mesh import RankMesh
from .policy.recompute import Recompute
from .samples import TrainSample
from .step_totals import StepTotals
from .trainer_config import TrainerConfig, UpdateSettings


@dataclass
class _Open:
    """A step whose gradients are being summed."""

    totals: StepTotals
    samples: list[TrainSample]
    prompts: set[str]
    batches: int = 0
    learned: bool = False  # a micro-batch with a gradient was run


class GradientSum:
    """Sums the gradients of a step on the parameters of `model`."""

    def __init__(self, model: Any, config: TrainerConfig, mesh: RankMesh, device: torch.device) -> None:
        self._model, self._config, self._mesh, self._device = model, config, mesh, device
        self._objective = Objective(config)
        self._pair_share = pair_share(model.config)
        self._head = ChunkedHead(model, config.temperature)
        self._partial_gradients = PartialGradients(model, mesh)
        self._recompute = Recompute(model, config.update.recompute)
        self._open: _Open | None = None

    def drop(self) -> None:
        """Forget the gradients and the groups that were added."""
        self._open = None
        for parameter in self._model.parameters():
            parameter.grad = None

    def add(
        self,
        groups: Sequence[Sequence[TrainSample]],
        update: UpdateSettings,
        replicas: Collection[int] | None = None,
    ) -> None:
        """Add the gradients of complete groups, in any order; every rank gets all of them and takes its share.

        `replicas`: those that share the groups, by number; None: all. Asserts that no prompt comes twice in a step.
        """
        step = self._open
        if step is None:
            self.drop()
            bound = math.inf if self._config.logprob_limits is None else self._config.logprob_limits.bound
            step = self._open = _Open(StepTotals(self._device, bound, self._objective.importance_cap), [], set())
        samples, advantages, weights = self._objective.prepare(groups)
        prompts = {sample.prompt_id for sample in samples}
        assert not prompts & step.prompts, f"a prompt comes twice in one step: {sorted(prompts & step.prompts)}"
        step.prompts |= prompts
        step.samples += samples
        budget, self._recompute.on = update.micro_batch_tokens, update.recompute
        # What has no advantage (its group's rewards are all equal) or no weight (it was truncated and is masked) has no
        # gradient: it is looked at for the metrics, and costs a forward instead of a forward and backward.
        learning = [i for i in range(len(samples)) if advantages[i] != 0.0 and weights[i] != 0.0]
        watched = sorted(set(range(len(samples))) - set(learning))
        with torch.no_grad():
            for share in self._share(samples, watched, budget, replicas):
                self._forward([samples[i] for i in share], [weights[i] for i in share], step.totals)
                step.batches += 1
        # After a forward FSDP leaves its root gathered for the backward pass; the gradients that were summed before are
        # on its shards.
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for share in self._share(samples, learning, budget, replicas):
            self._accumulate(
                [samples[i] for i in share], [advantages[i] for i in share], [weights[i] for i in share], step.totals
            )
            step.batches += 1
            step.learned = True

    def finish(self) -> tuple[list[TrainSample], dict[str, float]]:
        """Leave the whole step's gradients on the parameters; returns all samples, and the metrics of their tokens."""
        step, self._open = self._open, None
        assert step is not None, "no group was added"
        if not step.learned:
            # With nothing to learn the gradient is zero and not absent, and the optimizer steps all the same.
            self._accumulate([], [], [], step.totals)
            step.batches += 1
        self._partial_gradients.sum()
        metrics = self._objective.named(step.totals.metrics(self._mesh.batch_group))
        return step.samples, metrics | {"micro_batches": float(step.batches)}

    def _share(
        self, samples: list[TrainSample], chosen: list[int], budget: int, replicas: Collection[int] | None
    ) -> list[list[int]]:
        """This replica's micro-batches of the chosen samples, as their indices; equally many on every replica."""
        takers = sorted(range(self._mesh.dp) if replicas is None else replicas)
        packed = pack([samples[i].tokens for i in chosen], budget, len(takers), self._pair_share)
        if self._mesh.dp_rank not in takers:
            return [[] for _ in packed[0]]
        return [[chosen[place] for place in batch] for batch in packed[takers.index(self._mesh.dp_rank)]]

    def _forward(
        self, samples: list[TrainSample], weights: list[float], totals: StepTotals
    ) -> tuple[PackedLogprobs, torch.Tensor, torch.Tensor, PackedRow]:
        """(result, old log-probs, token weights, row) of one micro-batch, perhaps empty; it is added to the totals."""
        row = packed_row([(s.prompt_tokens, s.response_tokens) for s in samples], self._device, self._mesh)
        result = packed_logprobs(self._model, self._head, row)
        sampled = [x for s in samples for x in s.logprobs][row.held]
        old = torch.tensor(sampled, dtype=torch.float32, device=self._device)
        token_weight = self._per_token(samples, weights, row)
        totals.add_tokens(token_weight > 0, result.logprobs.detach() - old, result.entropies)
        return result, old, token_weight, row

    def _per_token(self, samples: list[TrainSample], values: list[float], row: PackedRow) -> torch.Tensor:
        """A sample's value for each of its response tokens that this rank holds."""
        lengths = torch.tensor([len(s.response_tokens) for s in samples], dtype=torch.long, device=self._device)
        by_token = torch.tensor(values, dtype=torch.float32, device=self._device).repeat_interleave(lengths)
        return by_token[row.held]

    def _accumulate(
        self, samples: list[TrainSample], advantages: list[float], weights: list[float], totals: StepTotals
    ) -> None:
        """Forward and backward of one micro-batch, perhaps an empty one; gradients add to those already there."""
        result, old, token_weight, row = self._forward(samples, weights, totals)
        advantage = self._per_token(samples, advantages, row)
        loss, clipped = self._objective.loss(result.logprobs, old, advantage, token_weight)
        torch.autograd.backward(loss + result.anchor)
        totals.add_loss(loss, clipped)
