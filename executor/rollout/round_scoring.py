"""The rewards of a round: finished samples go to the reward workers, their results to the round as events; and whether
the reward function still scores responses, or fails on nearly all of them.

A response that cannot be scored is worth 0 if that is its own fault (rewards/charges.py), and is drawn again if it is
the machine's. Both are right for few; where nearly all fail, it is the function's fault or the machine's whatever each
call says, and a run that went on would train on zeros. Then the run ends with the last reason.

Invariant: the samples of one prompt, however many, never end a run: its row may be bad, and the others are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ...plans.yaml.errors import RunFailed
from ...rounds.machines.events import Failed, SampleKey, Scored
from ..rewards.charges import RewardResult
from .prompts import PromptText
from .reward_sum import RewardSum, SummedReward
from .round_samples import Progress, RolloutSample

UNSCORED = ("policy_memory", "policy_crash", "function_error", "infra_failed")
"""Outcomes without a value of the reward function; not timeouts, of which there may be many."""

HOPELESS_FAILURES = 16
"""Failures that end a run: so many in a row, or so many in a round in which hardly any sample was scored."""
HOPELESS_SHARE = 0.9
HOPELESS_PROMPTS = 3
"""The failures must be of at least so many prompts, or of all prompts if there are fewer."""


class ScoringHealth:
    """Counts the failures of a run over all its rounds; `prompts`: how many prompts the job has."""

    def __init__(self, prompts: int) -> None:
        self._enough = min(HOPELESS_PROMPTS, prompts)
        self._row: list[str] = []  # prompts of the failures since a sample was scored
        self._round: list[str] = []  # of the failures of this round
        self._scored = 0  # in this round

    def begin_round(self) -> None:
        """Forget the counts of the round before."""
        self._round, self._scored = [], 0

    def hear(self, prompt: str, outcome: str, detail: str) -> str | None:
        """Count the outcome of a sample; why the run must end, None if it need not."""
        if outcome not in UNSCORED:
            self._row.clear()
            self._scored += 1
            return None
        self._row.append(prompt)
        self._round.append(prompt)
        if self._hopeless(self._row):
            return f"none of the last {len(self._row)} samples could be scored: {detail}"
        share = len(self._round) / (len(self._round) + self._scored)
        if share >= HOPELESS_SHARE and self._hopeless(self._round):
            heard = len(self._round) + self._scored
            return f"only {self._scored} of the round's {heard} samples could be scored: {detail}"
        return None

    def event(self, key: SampleKey, prompt: str, result: RewardResult) -> Scored | Failed | RunFailed:
        """The round's event for a sample's result: only `infra_failed` says nothing about the response."""
        hopeless = self.hear(prompt, result.outcome, result.detail)
        if hopeless is not None:
            return RunFailed(hopeless)
        if result.outcome == "infra_failed":
            return Failed(key, result.detail)
        return Scored(key, float(result.reward))

    def _hopeless(self, prompts: list[str]) -> bool:
        return len(prompts) >= HOPELESS_FAILURES and len(set(prompts)) >= self._enough


class Unscored(NamedTuple):
    """How many samples had an outcome, and the reason of the first of them."""

    samples: int
    reason: str


def unscored(samples: Iterable[RolloutSample]) -> Mapping[str, Unscored]:
    """By outcome, how many samples the reward function gave no value for."""
    by_outcome: dict[str, Unscored] = {}
    for sample in samples:
        if sample.reward_outcome in UNSCORED:
            before = by_outcome.get(sample.reward_outcome, Unscored(0, sample.reward_detail))
            by_outcome[sample.reward_outcome] = before._replace(samples=before.samples + 1)
    return by_outcome


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
        prompt, text = self._prompts[sample.prompt_id], self._decode_text(sample.response_tokens.tolist())
        deadlines_s = None if self._deadlines_s is None else self._deadlines_s(sample.prompt_id)
        sample.reward_deadline_s = max(deadlines_s.values(), default=None) if deadlines_s else None
        future = self._rewards.score(
            request_id, prompt.text, text, prompt.answer, len(sample.response_tokens), deadlines_s, prompt.sources
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
        event = self._health.event(sample.key, sample.prompt_id, result)
        if isinstance(event, Scored):
            sample.reward = event.reward
            self._progress.scored += 1
        self._tell(event)
