"""The rewards of a round: passes finished samples to the reward workers, and their results to the round as events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ...plans.yaml.errors import RunFailed
from ...rounds.machines.events import Failed, Scored
from .prompts import PromptText
from .reward_sum import RewardSum, SummedReward
from .round_samples import Progress, RolloutSample
from .scoring_health import ScoringHealth


class SampleRewards:
    """Scores one round's samples; passes each result to `tell`, unless the sample was aborted meanwhile.

    `deadlines_s` gives, by part of the reward, the seconds that scoring a sample of a prompt may take; without it, the
    workers' own.
    """

    def __init__(
        self,
        rewards: RewardSum,
        prompts: Mapping[str, PromptText],
        decode_text: Callable[[list[int]], str],
        health: ScoringHealth,
        deadlines_s: Callable[[str], Mapping[str, float]] | None,
        progress: Progress,
        tell: Callable[[Scored | Failed | RunFailed], None],
    ) -> None:
        self._rewards, self._prompts, self._decode_text = rewards, prompts, decode_text
        self._health, self._deadlines_s, self._progress, self._tell = health, deadlines_s, progress, tell
        self._pending: set[str] = set()

    @property
    def pending(self) -> bool:
        """Whether a reward is still being computed."""
        return bool(self._pending)

    def cancel(self, request_id: str) -> None:
        """Drop the reward of a sample; it may be unknown or there already."""
        self._rewards.cancel(request_id)

    def score(self, request_id: str, sample: RolloutSample) -> None:
        """Have a finished sample scored."""
        prompt, text = self._prompts[sample.prompt], self._decode_text(sample.tokens)
        deadlines_s = None if self._deadlines_s is None else self._deadlines_s(sample.prompt)
        sample.reward_deadline_s = max(deadlines_s.values(), default=None) if deadlines_s else None
        future = self._rewards.score(
            request_id, prompt.text, text, prompt.answer, len(sample.tokens), deadlines_s
        )  # fmt: skip
        self._pending.add(request_id)

        def scored(done: asyncio.Future[SummedReward]) -> None:
            self._pending.discard(request_id)
            if not done.cancelled() and not sample.aborted:
                self._scored(sample, done)

        future.add_done_callback(scored)

    def _scored(self, sample: RolloutSample, done: asyncio.Future[SummedReward]) -> None:
        error = done.exception()
        if error is not None:
            # Not this sample's fault but the pool's: dropping samples one by one would only hide it.
            self._tell(RunFailed(f"reward workers: {error}"))
            return
        result, sample.reward_parts = done.result().result, done.result().parts
        sample.reward_s, sample.reward_outcome = result.seconds, result.outcome
        sample.reward_detail = result.detail
        event = self._health.event(sample.key, sample.prompt, result)
        if isinstance(event, Scored):
            sample.reward = event.reward
            self._progress.scored += 1
        self._tell(event)
