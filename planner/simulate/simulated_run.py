"""A simulated run: its steps, their seconds and tokens, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step. Seconds; `tokens` with prompts, `response_tokens` without; `deferred`: prompts queued after it.

    Attributes:
        switch_s: getting the engines of another layout ready.
        log_tokens: sum over the trained samples of the log of their response tokens.
        excess_tokens: trained minus unconditioned response tokens, of the same draws (whole_columns.py).
        cut: trained samples that reached the job's cap.
        decoded_tokens: response tokens of all samples, aborted ones included.
        taken: prompts that its round took.
        epoch: the latest of those that issued its prompts.
        early_accelerator_s: accelerator-seconds that handed-over engines trained before the round's end; `train_s` is
            what was left.
        ages: of the prompts of a round by queue, in its order.
        waits: long rounds that each prompt waited which a long round settled.
    """

    kind: str
    rollout_s: float
    reward_exposed_s: float
    train_s: float
    sync_s: float
    groups: int
    samples: int
    tokens: int
    response_tokens: int
    deferred: int
    switch_s: float = 0.0
    log_tokens: float = 0.0
    excess_tokens: float = 0.0
    cut: int = 0
    decoded_tokens: int = 0
    preemptions: int = 0
    taken: int = 0
    epoch: int = 0
    early_accelerator_s: float = 0.0
    ages: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.switch_s + self.rollout_s + self.reward_exposed_s + self.train_s + self.sync_s


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A simulated run: its steps, and the long rounds for prompts that were still deferred when they were done.

    Attributes:
        steps: as asked for.
        settling: the rounds that the prompts still deferred need, run to the end of their queue: a run that put its
            long prompts off has not saved their time. The last of these rounds may be small, as none of a run that goes
            on is: its seconds count by its prompts.
        prompts_per_step: P.
        unconditioned_tokens: mean length of the model; of the run's mean step where lengths drift.
    """

    steps: tuple[SimulatedStep, ...]
    settling: tuple[SimulatedStep, ...]
    prompts_per_step: int
    unconditioned_tokens: float

    def seconds_per_sample(self, since_epoch: int = 0) -> float:
        """Seconds per trained sample from an epoch on, the rounds for deferred prompts included."""
        steps = [s for s in self.steps if s.epoch >= since_epoch]
        owed = [s for s in self.settling if s.epoch >= since_epoch]
        seconds = sum(s.step_s for s in steps) + sum(s.step_s * s.taken / self.prompts_per_step for s in owed)
        return seconds / sum(s.samples for s in (*steps, *owed))

    def length_ratio(self) -> float:
        """Mean trained length over the unconditioned mean length, the rounds for deferred prompts included.

        Prompt by prompt against the prompt's first draw, uncut: in the first epoch the same draws, so that neither
        unlike prompts nor heavy tails are noise in it; in later epochs the noise of the draws stays.
        """
        every = (*self.steps, *self.settling)
        excess = math.fsum(s.excess_tokens for s in every) / sum(s.samples for s in every)
        return 1.0 + excess / self.unconditioned_tokens

    def cut_share(self) -> float:
        """Share of the trained samples that reached the job's cap, the rounds for deferred prompts included."""
        every = (*self.steps, *self.settling)
        return sum(s.cut for s in every) / sum(s.samples for s in every)

    def long_share(self) -> float:
        """Share of the steps that were long rounds."""
        return sum(s.kind == "long" for s in self.steps) / len(self.steps)
