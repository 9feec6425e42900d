"""The gradients of one step on one rank: groups add theirs as they come, and the optimizer steps when all are there.

Invariants:
- Gradients do not depend on which groups were added together, on the micro-batch split or on the number of ranks,
  beyond rounding: advantages belong to a group, every token's weight in the loss holds the division by constants of the
  plan, and gradients are summed, never averaged. A divisor that the whole step decides is applied to its sum
  (`train_samples.step_factor`).
- No weight changes while gradients are summed.
- `add` and `finish` are collective. Replicas that take no part in an `add` run empty micro-batches beside the others:
  they hold shards of the parameters that the others gather.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .losses import Objective, StepTotals, kl_estimates
from .policy.adapters import trained_parameters
from .policy.chunked_head import ChunkedHead
from .policy.load_policy import LayerForwards
from .policy.local_tensors import local, resharded
from .policy.packed_rows import PackedLogprobs, PackedRow, packed_logprobs, packed_row
from .policy.rank_mesh import PartialGradients, RankMesh
from .train_samples import NOTHING, Floats, Groups, Ints, MicroBatch, ReplicaShare, pair_share, shares, step_factor
from .trainer_config import TrainerConfig, UpdateSettings

_LOG = logging.getLogger(__name__)

LEAST_GAIN = 0.05
"""Share of its seconds that a micro-batch must save for layers to stay compiled."""

DECIDING_PASSES = 3


@dataclass
class _Open:
    """A step whose gradients are being summed."""

    totals: StepTotals
    prompts: set[str] = field(default_factory=set)
    samples: int = 0
    tokens: int = 0
    rewards: float = 0.0
    squares: float = 0.0
    tokens_in_loss: int = 0
    batches: int = 0
    reference_s: float = 0.0
    learned: bool = False  # a micro-batch with a gradient was run


class GradientSum:
    """Sums the gradients of a step on the parameters of `model`.

    `as_reference`: within it the model computes as the reference of the job's KL; None: the job has none.
    """

    def __init__(
        self,
        model: Any,
        config: TrainerConfig,
        mesh: RankMesh,
        device: torch.device,
        as_reference: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._as_reference = as_reference
        self._model, self._config, self._mesh, self._device = model, config, mesh, device
        self._objective = Objective(config)
        self.pairs = pair_share(model.config)
        """Costs of a pair of tokens, for who makes shares."""
        self._head = ChunkedHead(model, config.temperature, explores=config.algorithm.entropy_bonus > 0)
        self._partial_gradients = PartialGradients(model, mesh, config.lora is not None)
        self._layers = LayerForwards(model, config.update.recompute)
        self._layers.compiled = config.compile == "on"
        self._undecided = config.compile == "auto" and device.type != "cpu"
        self._open: _Open | None = None

    def drop(self) -> None:
        """Forget the gradients and the groups that were added."""
        self._open = None
        for parameter in self._model.parameters():
            parameter.grad = None

    def add(
        self, groups: Groups | ReplicaShare, update: UpdateSettings, replicas: Collection[int] | None = None
    ) -> None:
        """Add the gradients of complete groups, or of this replica's share of them.

        `replicas`: those that share the groups, by number; None: all. Asserts that no prompt comes twice in a step.
        """
        step = self._open
        if step is None:
            self.drop()
            bound = math.inf if self._config.logprob_limits is None else self._config.logprob_limits.bound
            step = self._open = _Open(StepTotals(self._device, bound, self._objective.importance_cap))
        if not isinstance(groups, ReplicaShare):
            made = shares(groups, self._config, update.micro_batch_tokens, self.pairs, replicas)
            groups = made[self._mesh.dp_rank]
        again = step.prompts.intersection(groups.prompts)
        assert not again, f"a prompt comes twice in one step: {sorted(again)}"
        step.prompts.update(groups.prompts)
        step.samples += groups.samples
        step.tokens += groups.tokens
        step.rewards += groups.rewards
        step.squares += groups.squares
        step.tokens_in_loss += groups.tokens_in_loss
        step.batches += len(groups.watched) + len(groups.learning)
        self._layers.recompute = update.recompute
        reference: Sequence[torch.Tensor | None] = [None] * (len(groups.watched) + len(groups.learning))
        if self._as_reference is not None:
            began = time.perf_counter()
            reference = scored = self._referred([*groups.watched, *groups.learning], self._as_reference)
            groups = self._less_kl(groups, scored)
            step.reference_s += time.perf_counter() - began
        with torch.no_grad():
            for batch, logprobs in zip(groups.watched, reference, strict=False):
                self._forward(batch, step.totals, logprobs)
        # After a forward FSDP leaves its root gathered for the backward pass; the gradients that were summed before are
        # on its shards.
        resharded(self._model)
        if groups.learning and self._undecided:
            self._decide(groups.learning[0])
        for batch, logprobs in zip(groups.learning, reference[len(groups.watched) :], strict=True):
            self._accumulate(batch, step.totals, logprobs)
            step.learned = True

    def _referred(
        self, batches: Sequence[MicroBatch], as_reference: Callable[[], AbstractContextManager[None]]
    ) -> list[torch.Tensor]:
        """The reference's log-probabilities of the response tokens that this rank holds, by micro-batch."""
        rows = (packed_row(batch.sequences(), self._device, self._mesh) for batch in batches)
        with torch.no_grad(), as_reference():
            scored = [packed_logprobs(self._model, self._head, row).logprobs for row in rows]
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return scored

    def _less_kl(self, groups: ReplicaShare, reference: Sequence[torch.Tensor]) -> ReplicaShare:
        """The share with rewards less the KL to the reference, where the job's KL is in the reward (collective):
        advantages follow from the estimates of whole groups, whose tokens several ranks hold."""
        kl = self._config.algorithm.kl
        if kl is None or kl.applied_to == "loss":
            return groups
        sums = torch.zeros(groups.samples, dtype=torch.float64, device=self._device)
        for batch, logprobs in zip([*groups.watched, *groups.learning], reference, strict=True):
            row = packed_row(batch.sequences(), self._device, self._mesh)
            estimates = kl_estimates(self._held(batch.logprobs, row) - logprobs, kl.estimator)
            places = self._held(np.repeat(batch.places, batch.response_lengths), row)
            sums.index_add_(0, places, estimates.double())
        if self._mesh.batch_group is not None:
            dist.all_reduce(sums, group=self._mesh.batch_group)
        # What is not finite has the step refused (step_checks.refusal); until then the ranks stay in step.
        return groups.less_kl((kl.coefficient * sums).nan_to_num(0.0, 0.0, 0.0).tolist(), self._config)

    def finish(self) -> dict[str, float]:
        """Leave the whole step's gradients on the parameters; returns the metrics of its samples and their tokens."""
        step, self._open = self._open, None
        assert step is not None and step.samples, "no group was added"
        if not step.learned:
            # With nothing to learn the gradient is zero and not absent, and the optimizer steps all the same.
            self._accumulate(NOTHING, step.totals)
            step.batches += 1
        self._partial_gradients.sum()
        metrics = self._objective.named(step.totals.metrics(self._mesh.batch_group))
        of_step = step.samples, step.squares, step.tokens_in_loss
        factor = step_factor(self._config.algorithm, self._config.divisors, *of_step)
        if factor != 1.0:
            metrics |= {key: metrics[key] * factor for key in ("loss", "kl_loss") if key in metrics}
            for parameter in trained_parameters(self._model).values():
                local(parameter.grad).mul_(factor)  # type: ignore[arg-type]
        if (kl := self._config.algorithm.kl) is not None:
            metrics |= {"kl_coef": kl.coefficient, "reference_s": step.reference_s}
        return metrics | {
            "reward_mean": step.rewards / step.samples,
            "tokens": step.tokens,
            "samples": step.samples,
            "micro_batches": float(step.batches),
            "compiled": float(self._layers.compiled),
        }

    def _decide(self, batch: MicroBatch) -> None:
        """Whether layers run compiled: the trainer's first micro-batch with a gradient is computed both ways, before
        any gradient is kept (collective). All ranks decide alike, by the seconds of the slowest."""
        self._undecided = False
        # A forward that cannot be compiled runs as it is, and the ranks stay in step; a backward ends the step with
        # torch's words, and `compile: off` is the remedy.
        torch._dynamo.config.suppress_errors = True
        seconds = []
        for compiled in (False, True):
            self._layers.compiled = compiled
            passes = [self._timed(batch) for _ in range(DECIDING_PASSES)]
            seconds.append(min(passes[1:]))  # the first makes what the others use again
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self._device)
        if self._mesh.ranks > 1:
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        plain_s, compiled_s = slowest.tolist()
        self._layers.compiled = compiled_s <= plain_s * (1.0 - LEAST_GAIN)
        verdict = "stay compiled" if self._layers.compiled else "run as they are"
        _LOG.info("a micro-batch takes %.3g s, with compiled layers %.3g s: they %s", plain_s, compiled_s, verdict)

    def _timed(self, batch: MicroBatch) -> float:
        """Seconds of one forward and backward, whose gradients are dropped."""
        totals = StepTotals(self._device, math.inf, math.inf)
        began = time.perf_counter()
        self._accumulate(batch, totals)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        for parameter in self._model.parameters():
            parameter.grad = None
        return seconds

    def _forward(
        self, batch: MicroBatch, totals: StepTotals, reference: torch.Tensor | None = None
    ) -> tuple[PackedLogprobs, torch.Tensor, torch.Tensor, torch.Tensor | None, PackedRow]:
        """(result, old log-probs, token weights, KL to the reference, row) of one micro-batch, perhaps empty; it is
        added to the totals. `reference`: its log-probs, if there is one."""
        row = packed_row(batch.sequences(), self._device, self._mesh)
        result = packed_logprobs(self._model, self._head, row)
        old = self._held(batch.logprobs, row)
        token_weight = self._held(np.repeat(batch.weights, batch.response_lengths), row)
        totals.add_tokens(token_weight > 0, result.logprobs.detach() - old, result.entropies.detach())
        kl = None
        if reference is not None and self._config.algorithm.kl is not None:
            kl = kl_estimates(result.logprobs - reference, self._config.algorithm.kl.estimator)
            totals.add_kl(kl, token_weight)
        return result, old, token_weight, kl, row

    def _held(self, values: Floats | Ints, row: PackedRow) -> torch.Tensor:
        """Of values of all response tokens, those that this rank holds."""
        return torch.tensor(values[row.held], device=self._device)

    def _accumulate(self, batch: MicroBatch, totals: StepTotals, reference: torch.Tensor | None = None) -> None:
        """Forward and backward of one micro-batch, perhaps an empty one; gradients add to those already there."""
        result, old, token_weight, kl, row = self._forward(batch, totals, reference)
        advantage = self._held(np.repeat(batch.advantages, batch.response_lengths), row)

        def response_means(values: torch.Tensor) -> torch.Tensor:
            if not len(batch.response_lengths):
                return values
            lengths = torch.tensor(batch.response_lengths, device=self._device)
            responses = torch.repeat_interleave(lengths)[row.held]
            sums = torch.zeros(len(lengths), device=self._device).index_add_(0, responses, values)
            if self._mesh.sequence_group is not None:
                dist.all_reduce(sums, group=self._mesh.sequence_group)
            return (sums / lengths)[responses]

        loss, clipped = self._objective.loss(
            result.logprobs, result.entropies, old, advantage, token_weight, response_means,
            kl if self._config.algorithm.learns_kl else None,
        )  # fmt: skip
        torch.autograd.backward(loss + result.anchor)
        totals.add_loss(loss, clipped)
