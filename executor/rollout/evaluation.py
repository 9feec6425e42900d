"""Evaluations: between two steps, engines that hold the weights decode prompts of a file of its own, all to their end.

Invariants: an evaluation changes nothing that is trained (its prompts are in no schedule, its samples in no update, and
seeds of its own line draw them); every sample is decoded from its first to its last token by the weights that it tells
of; each evaluation of a job with seeds draws with the same ones, so that two of them differ by their weights alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

from ...plans.schema.job import EvaluateSpec
from ...plans.schema.levers import EngineLayout
from ...rounds.machines.race import RaceRound
from ...rounds.seeds import RoundSeeds
from ...traces.trace_events import Evaluation
from .live_round import GiveWeights
from .round_runner import RoundOptions, RoundRunner

_EPOCH = -1  # of the seeds: no epoch of the training


class Evaluator:
    """Evaluates the weights of one run.

    Args:
        spec: the job's section `evaluate`.
        prompts: ids of the file's prompts, in its order.
        runner: of these prompts, at the temperature of `spec`.
        max_tokens: cap on a response.
        seed: of the job, where each sample has a seed of its own.
    """

    def __init__(
        self, spec: EvaluateSpec, prompts: Sequence[str], runner: RoundRunner, max_tokens: int, seed: int | None
    ) -> None:
        self.runner = runner
        self._spec, self._prompts, self._max_tokens = spec, list(prompts), max_tokens
        self._seeds = None if seed is None else RoundSeeds(seed, lambda _: _EPOCH, None)
        self._last_step = -1

    def due(self, step: int, at_end: bool = False) -> bool:
        """Whether the weights after `step` updates are to be evaluated now; `at_end`: the run ends with them."""
        if step == self._last_step:
            return False
        return at_end or (step % self._spec.every_steps == 0 if step else self._spec.at_start)

    async def evaluate(
        self, step: int, layout: EngineLayout, version: str, give_weights: GiveWeights, tag: str, max_num_seqs: int
    ) -> Evaluation:
        """Evaluate the weights after `step` updates, which engines of `layout` hold as `version`; for the rest see
        `RoundRunner.run`. Raises RunFailed."""
        began, size = time.perf_counter(), self._spec.samples_per_prompt
        machine = RaceRound(self._prompts, len(self._prompts), size, size, self._max_tokens)
        options = RoundOptions(self._seeds, max_num_seqs=max_num_seqs)
        result = await self.runner.run(machine, layout, version, give_weights, tag, options)
        groups = machine.outcome().trained
        samples = [result.samples[key] for group in groups for key in group.keys]
        others = sum((sample.version_start, sample.version_end) != (version, version) for sample in samples)
        assert others == 0, f"{others} samples of the evaluation of step {step} were not decoded by {version}"
        self._last_step = step
        rewards = [group.rewards for group in groups]
        ks = [2**power for power in range(size.bit_length())]
        return Evaluation(
            step=step,
            prompts=len(groups),
            samples=size,
            reward=mean_and_error([statistics.fmean(each) for each in rewards]),
            pass_at={k: mean_and_error([chance_of_pass(size, self._passes(each), k) for each in rewards]) for k in ks},
            mean_tokens=statistics.fmean(len(sample.response_tokens) for sample in samples) if samples else 0.0,
            truncated=statistics.fmean(sample.truncated for sample in samples) if samples else 0.0,
            failed=len(self._prompts) - len(groups),
            seconds=round(time.perf_counter() - began, 6),
        )

    def _passes(self, rewards: Sequence[float]) -> int:
        return sum(reward >= self._spec.passes_at for reward in rewards)


def chance_of_pass(samples: int, passed: int, k: int) -> float:
    """The chance that one of k responses, drawn from `samples` without return, is among the `passed`: pass@k without
    bias (Chen et al., arXiv 2107.03374, section 2.1)."""
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean of values by prompt and its standard error; NaN of none, no error of one."""
    if not values:
        return math.nan, None
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
