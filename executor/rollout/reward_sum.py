"""The reward of a sample: the weighted sum of its parts, each scored by a pool of workers, a judge, or its length.

Invariants:
- a sample's reward is known when its last part is; the values are added up in the order of the job's list, so the sum
  does not depend on which part came first;
- a part whose failure is the machine's ends the sample at once as `infra_failed`, and its other parts are cancelled;
- `cancel` cancels all parts; nobody waits for a part of a sample whose reward is known or given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from ...plans.schema.job import Job, JobPaths, RewardSpec
from ...plans.schema.reward_spec import LENGTH_KINDS, scores_rows
from ..placement.actor_placer import ActorPlacer
from ..processes.supervision import Supervisor, together
from ..rewards.charges import RewardResult
from ..rewards.functions import ScorerConfig
from ..rewards.kinds.length_reward import length_value
from ..rewards.pool import RewardPool
from ..rewards.scoring import Outcome


class PartScore(NamedTuple):
    """What one part gave for a sample: its value before the weight, seconds, how scoring ended, its deadline in seconds
    (None: the pool's own, or none at all), and how often it was asked for."""

    value: float
    seconds: float
    outcome: Outcome
    deadline_s: float | None = None
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class SummedReward:
    """The reward of a sample. `result`: the sum, the outcome that says most (`OUTCOMES`), the longest part's seconds;
    `parts`: by name, in order; those that were cancelled are left out."""

    result: RewardResult
    parts: Mapping[str, PartScore]


OUTCOMES: tuple[Outcome, ...] = (
    "infra_failed", "policy_crash", "policy_memory", "function_error", "policy_timeout", "policy_error", "ok",
)  # fmt: skip
"""Of several parts with different outcomes, the first in this order is the sample's."""


class PartScorer(Protocol):
    """What scores one part: a pool of reward workers, or a judge."""

    async def start(self) -> None:
        """Start its processes. Raises InputError or RunFailed."""

    def score(
        self, sample_key: str, prompt: str, response: str, answer: Any, deadline_s: float | None = None
    ) -> asyncio.Future[RewardResult]:
        """Queue a sample; the future resolves to its result, is cancelled, or raises RunFailed."""

    def cancel(self, sample_key: str) -> bool:
        """Drop a sample; an unknown or finished one is no error."""

    async def close(self) -> None:
        """End its processes."""


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """One part: scored by `scorer`, or, where it looks at the length alone, the value of a number of tokens."""

    name: str
    weight: float = 1.0
    scorer: PartScorer | None = None
    of_length: Callable[[int], float] | None = None
    rows: tuple[str, ...] = ()

    def scores(self, sources: Collection[str]) -> bool:
        """Whether the part scores rows of these sources."""
        return scores_rows(self.rows, sources)


class PoolSize(NamedTuple):
    """Workers of one part's pool, and the longest deadline of a sample in seconds."""

    workers: int
    deadline_s: float


class RewardSum:
    """All parts of a job's reward. All methods are to be called on one running event loop."""

    def __init__(self, parts: Sequence[ScoredPart]) -> None:
        self._parts = tuple(parts)
        self._open: dict[str, _Summing] = {}

    @classmethod
    def alone(cls, scorer: PartScorer) -> RewardSum:
        """A reward of one part."""
        return cls([ScoredPart("reward", scorer=scorer)])

    @classmethod
    def of_job(
        cls,
        job: Job,
        paths: JobPaths,
        sizes: Mapping[str, PoolSize],
        supervisor: Supervisor | None = None,
        placer: ActorPlacer | None = None,
        judge: PartScorer | None = None,
    ) -> RewardSum:
        """The parts of a job's reward; `sizes`: of the pools, by name of the part, in the order in which their workers
        are placed. `judge` scores the part of kind judge; without it that part is left out (as `profile` does)."""
        first, scorers = 0, {}
        for part in job.reward.pooled:
            size = sizes[part.label]
            prefix = "reward" if not first else f"reward-{part.label}"
            scorers[part.label] = RewardPool(
                ScorerConfig.of_part(part, paths, size.deadline_s), size.workers, retries=part.retries, name=prefix,
                supervisor=supervisor, placer=placer, first_worker=first,
            )  # fmt: skip
            first += size.workers
        parts = [part for part in job.reward.parts if part.kind != "judge" or judge is not None]
        return cls([_part(part, job, scorers.get(part.label, judge)) for part in parts])

    def scorer(self, name: str) -> PartScorer:
        """What scores the part of this name."""
        return next(part.scorer for part in self._parts if part.name == name and part.scorer is not None)

    def only(self, names: Collection[str]) -> RewardSum:
        """The parts of these names alone, each of weight 1, scored by the same pools, which stay this reward's to start
        and to close; of no names: this reward."""
        return RewardSum([replace(part, weight=1.0) for part in self._parts if part.name in names]) if names else self

    @property
    def scorers(self) -> list[PartScorer]:
        """What scores the parts that are not of length alone."""
        return [part.scorer for part in self._parts if part.scorer is not None]

    def notes(self) -> list[str]:
        """What the hosts of the reward workers lack of the sandbox, each thing once."""
        pools = [scorer for scorer in self.scorers if isinstance(scorer, RewardPool)]
        return sorted({note for pool in pools for facts in pool.facts().values() for note in facts.notes})

    async def start(self) -> None:
        """Start all pools. Raises InputError or RunFailed."""
        await together(*(scorer.start() for scorer in self.scorers))

    async def close(self) -> None:
        """Cancel what is unfinished and end all pools."""
        for key in list(self._open):
            self.cancel(key)
        await asyncio.gather(*(scorer.close() for scorer in self.scorers))

    def score(
        self,
        sample_key: str,
        prompt: str,
        response: str,
        answer: Any,
        tokens: int,
        deadlines_s: Mapping[str, float] | None = None,
        sources: Collection[str] = (),
    ) -> asyncio.Future[SummedReward]:
        """Score a response of so many tokens; the future resolves to the reward, is cancelled by `cancel`, or raises
        RunFailed. `deadlines_s`: by name of a part; a part without one has its pool's own. `sources`: of
        the prompt's row; a part that names others does not score it."""
        summing = _Summing(tuple(part for part in self._parts if part.scores(sources)), sample_key)
        self._open[sample_key] = summing
        summing.future.add_done_callback(lambda _: self._settle(sample_key, summing))
        for part in summing.parts:
            if part.of_length is not None:
                summing.scores[part.name] = PartScore(part.of_length(tokens), 0.0, "ok")
                continue
            assert part.scorer is not None, f"nobody scores part {part.name}"
            deadline_s = None if deadlines_s is None else deadlines_s.get(part.name)
            call = part.scorer.score(sample_key, prompt, response, answer, deadline_s)
            summing.waits.add(part.name)
            call.add_done_callback(partial(summing.hear, part.name, deadline_s))
        if not summing.waits:
            summing.end()
        return summing.future

    def cancel(self, sample_key: str) -> bool:
        """Drop a sample with all of its parts; True if it was still being scored."""
        summing = self._open.get(sample_key)
        if summing is None:
            return False
        summing.future.cancel()
        self._settle(sample_key, summing)
        return True

    def _settle(self, sample_key: str, summing: _Summing) -> None:
        """The reward is known or given up: the parts that are still waited for are cancelled."""
        if self._open.get(sample_key) is not summing:
            return
        del self._open[sample_key]
        for part in self._parts:
            if part.name in summing.waits and part.scorer is not None:
                part.scorer.cancel(sample_key)


@dataclass(eq=False)
class _Summing:
    """A sample whose parts are being scored."""

    parts: tuple[ScoredPart, ...]
    key: str
    scores: dict[str, PartScore] = field(default_factory=dict)
    results: dict[str, RewardResult] = field(default_factory=dict)
    waits: set[str] = field(default_factory=set)
    future: asyncio.Future[SummedReward] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def hear(self, name: str, deadline_s: float | None, call: asyncio.Future[RewardResult]) -> None:
        """A part's call has ended."""
        self.waits.discard(name)
        if self.future.done():
            return
        if call.cancelled():
            self.future.cancel()
        elif (error := call.exception()) is not None:
            self.future.set_exception(error)
        else:
            result = call.result()
            self.results[name] = result
            self.scores[name] = PartScore(result.reward, result.seconds, result.outcome, deadline_s, result.attempts)
            if result.outcome == "infra_failed" or not self.waits:
                self.end()

    def end(self) -> None:
        """Add up the parts that are known."""
        known = [part for part in self.parts if part.name in self.scores]
        total = 0.0
        for part in known:
            total += part.weight * self.scores[part.name].value
        scores = {part.name: self.scores[part.name] for part in known}
        # None scores a row of the judge's alone where that is left out.
        none = PartScore(0.0, 0.0, "ok")
        worst = min(scores.values(), key=lambda score: OUTCOMES.index(score.outcome), default=none)
        name = next((name for name, score in scores.items() if score is worst), "")
        said = self.results.get(name)
        detail = "" if said is None else said.detail
        if detail and len(self.parts) > 1:
            detail = f"{name}: {detail}"
        self.future.set_result(
            SummedReward(
                RewardResult(
                    reward=0.0 if worst.outcome == "infra_failed" else total,
                    seconds=max((score.seconds for score in scores.values()), default=0.0),
                    outcome=worst.outcome,
                    detail=detail,
                    attempts=0 if said is None else said.attempts,
                    worker="" if said is None else said.worker,
                ),
                scores,
            )
        )


def _part(part: RewardSpec, job: Job, scorer: PartScorer | None) -> ScoredPart:
    if part.kind in LENGTH_KINDS:
        cap = job.rollout.max_response_tokens
        value = partial(length_value, part, cap_tokens=cap)
        return ScoredPart(part.label, part.weight, of_length=value, rows=part.rows)
    return ScoredPart(part.label, part.weight, scorer, rows=part.rows)
