"""A whole run on a virtual clock: one Schedule, with short and long rounds in the executor's order.

Where columns give the steady state, this gives a run with its transients: the queue starts empty and fills, a data set
may be so small that rounds run out of prompts, engines change between rounds of unlike layouts, lengths drift while the
policy learns. It is what tests hold the columns against, and what predicts a run of so many steps, or a plan that was
edited by hand. Epochs run into each other, as the executor's do (rounds/schedule.py). Reward deadlines are learnt round
by round, as the executor learns them (rounds/timeouts.py), so the first epoch pays the longest one for every answer
that hangs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...plans.schema.cluster import Cluster
from ...plans.schema.job import Job
from ...plans.schema.plan import Plan
from ...plans.yaml.errors import InputError
from ...profiles.length_trace import LengthTrace
from ...profiles.profile_schema import Profile
from ...rounds.balancing.length_estimates import NOTHING
from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate
from ...rounds.machines.round import Round
from ...rounds.round_spec import RoundSpec
from ...rounds.schedule import Schedule
from ...rounds.timeouts import RewardExecution, Timeouts
from ..costs.decode_costs import DecodeCost
from ..costs.reward_costs import RewardCost
from ..costs.round_costs import RoundCosts, round_costs, scoring
from ..lengths.draws import Draws, EarlierEpoch, prompt_name, prompt_parts
from ..lengths.length_model import fit_lengths
from ..lengths.table_lengths import extrapolated
from .reference_round import Observe, RoundLengths, simulate_round
from .streamed_updates import exposed_update_s, round_window

# -- steps, and what follows from them ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step. Seconds; `tokens` with prompts, `response_tokens` without; `deferred`: prompts queued after it.

    Attributes:
        switch_s: getting the engines of another layout ready.
        log_tokens: sum over the trained samples of the log of their response tokens.
        excess_tokens: trained minus unconditioned response tokens, of the same draws (columns/whole_columns.py).
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


# -- draws, sample by sample -------------------------------------------------------------------------------------------


class RunDraws:
    """The draws of one whole run, sample by sample: counts how often each prompt was drawn.

    `rewards_matter` only under dynamic sampling; elsewhere all rewards are 0, which no machine looks at.
    """

    def __init__(self, draws: Draws, rewards_matter: bool) -> None:
        self._draws = draws
        self._rewards_matter = rewards_matter
        self._occurrences: dict[str, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._rewards: dict[int, list[float]] = {}
        self._reward_luck: dict[int, list[float]] = {}

    def begin(self) -> None:
        """A new round begins: draw numbers start again."""
        self._rows = {}
        self._rewards = {}
        self._reward_luck = {}

    def natural(self, key: SampleKey, prompt: str) -> int:
        """Length of a sample, which the job's cap may have cut."""
        row = self._rows.get(key.draw)
        if row is None:
            occurrence = self._occurrences.get(prompt, 0)
            self._occurrences[prompt] = occurrence + 1
            number, stream = prompt_parts(prompt)
            row = self._rows[key.draw] = self._draws.row(number, stream, occurrence).tolist()
            if self._rewards_matter:
                drawn = self._draws.rewards(np.array([number]), stream, np.array([occurrence]))
                self._rewards[key.draw] = drawn[0].tolist()
            taken = self._draws.reward_draws(np.array([number]), stream, np.array([occurrence]))
            self._reward_luck[key.draw] = taken[0].tolist()
        return row[key.sample]

    def _reward(self, key: SampleKey, prompt: str) -> float:
        return self._rewards[key.draw][key.sample] if self._rewards_matter else 0.0

    def reward_draws(self, key: SampleKey) -> float:
        """The uniform number in [0, 1) that picks the seconds of an issued sample's reward."""
        return self._reward_luck[key.draw][key.sample]

    def lengths(self) -> RoundLengths:
        """The run's draws in the form that `simulate_round` takes."""
        return RoundLengths(
            natural=self.natural,
            prompt_tokens=self._draws.prompt_tokens,
            reward=self._reward,
            cap_tokens=self._draws.model.cap_tokens,
            expected_tokens=self._draws.model.mean_tokens,
        )


class Scoring:
    """Reward seconds of a run's samples, under deadlines that the run learns."""

    def __init__(self, cost: RewardCost, draws: Draws) -> None:
        self.timeouts = Timeouts(cost.timeout)
        self._cost = cost
        self._draws = draws
        self._done: dict[SampleKey, RewardExecution] = {}

    def of_round(self, run_draws: RunDraws) -> Callable[[SampleKey, str, int], float] | None:
        """The `reward_s` of a round's `RoundLengths`; None where samples of one length take the same seconds."""
        executions = self._cost.executions
        if executions is None:
            return None

        def reward_s(key: SampleKey, prompt: str, tokens: int) -> float:
            prompt_draw = float(self._draws.prompt_draws(np.array([prompt_parts(prompt)[0]]))[0])
            done = executions.execute(
                prompt, prompt_draw, run_draws.reward_draws(key), self.timeouts.deadline_s(prompt)
            )
            self._done[key] = done
            return done.seconds

        return reward_s

    def end_round(self, machine: Round) -> None:
        """Learn deadlines from the trained and filtered groups of a finished round, as the executor does."""
        if self._cost.executions is None:
            return
        self.timeouts.end_round(
            self._done[SampleKey(draw.number, sample)]
            for draw in machine.draws
            if draw.fate in (Fate.TRAINED, Fate.FILTERED)
            for sample in machine.trained_samples(draw)
        )
        self._done = {}


class Watch:
    """Base class of an observer of `simulate_run`; its methods do nothing. Times are seconds, tokens whole.

    `round_begins(number, kind, layout)` returns the observer of that round's events (reference_round.Observe) or None;
    `step_done` comes with the finished step and with (draw number, prompt) of what it deferred.
    """

    def round_begins(self, number: int, kind: str, cost: DecodeCost) -> Observe | None:
        """Return the observer of the events of round `number`, or None."""
        return None

    def step_done(self, number: int, step: SimulatedStep, deferred: list[tuple[int, str]]) -> None:
        """Receive the finished step of round `number` and the draws that it deferred."""


def simulate_run(
    spec: RoundSpec,
    short: RoundCosts,
    long: RoundCosts,
    reward: RewardCost,
    draws: Draws,
    steps: int,
    prompts: int,
    *,
    epochs: int = 1,
    drift_per_step: float = 0.0,
    switch_s: float = 0.0,
    history: bool = False,
    watch: Watch | None = None,
) -> SimulatedRun:
    """Run `steps` steps over epochs of `prompts` synthetic prompts.

    Args:
        steps: 0 runs until every free prompt of the first `epochs` epochs was issued.
        drift_per_step: the growth of the log of every length from step to step. A length that the job's cap had cut
            is taken as the cap, so shrinking lengths are shrunk a little too much.
        switch_s: seconds before a round whose layout is not the previous round's.
        history: where lengths are recorded, begin with an epoch that has a history; without, with one that has none.
        watch: an observer of the run.
    """
    earlier = None
    if history and spec.learns:
        earlier = EarlierEpoch(draws, spec.samples_per_prompt, prompts).history(0)
    schedule = Schedule(spec, [prompt_name(i, 0) for i in range(prompts)], seed=draws.seed, history=earlier)
    run_draws = RunDraws(draws, spec.dynamic_sampling)
    rewards = Scoring(reward, draws)
    watch = watch or Watch()
    size, cap = spec.samples_per_prompt, spec.max_tokens
    done: list[SimulatedStep] = []
    scales: list[float] = []
    layout = short.decode.key

    def step() -> SimulatedStep:
        nonlocal layout
        number = len(done)
        scale = math.exp(drift_per_step * number)
        machine = schedule.begin()
        kind = long if machine.kind == "long" else short
        run_draws.begin()
        observe = watch.round_begins(number, machine.kind, kind.decode)
        recorded = schedule.recorded() if kind.decode.balance is not None else NOTHING
        lengths = replace(run_draws.lengths(), reward_s=rewards.of_round(run_draws), recorded=recorded)
        lengths = lengths if scale == 1.0 else _scaled(lengths, scale)
        ready: dict[int, float] = {}
        times = simulate_round(
            machine,
            lengths,
            kind.decode,
            reward,
            kind.max_num_seqs,
            observe,
            change=kind.change,
            samples_to_train=machine.samples_to_train(spec.prompts_per_step),
            on_ready=ready.__setitem__,
        )
        switched, layout = kind.decode.key != layout, kind.decode.key
        outcome = schedule.end(machine)
        rewards.end_round(machine)
        trained = [(draws.prompt_tokens(g.prompt), t) for g in outcome.trained for t in g.tokens]
        first = sum(draws.first(g.prompt, size) for g in outcome.trained)
        tokens = sum(p + t for p, t in trained)
        squares = sum((p + t) ** 2 for p, t in trained)
        window = round_window(kind, times.freed_s, times.end_s, outcome, ready, draws.prompt_tokens)
        early = window.streamed(kind.train)
        result = SimulatedStep(
            kind=machine.kind,
            rollout_s=times.decode_end_s,
            reward_exposed_s=times.reward_exposed_s,
            train_s=exposed_update_s(kind.train, tokens, squares, early),
            sync_s=kind.decode.sync_beside(kind.train.layout),
            groups=len(outcome.trained),
            samples=len(trained),
            tokens=tokens,
            response_tokens=sum(t for _, t in trained),
            deferred=len(schedule.deferred),
            switch_s=switch_s if switched else 0.0,
            log_tokens=math.fsum(math.log(t) for _, t in trained),
            excess_tokens=sum(t for _, t in trained) - scale * first,
            cut=sum(t >= cap for _, t in trained),
            decoded_tokens=times.decoded_tokens,
            preemptions=times.preemptions,
            taken=len(machine.taken),
            epoch=max(map(schedule.epoch_of, machine.taken)),
            early_accelerator_s=early.busy_s * early.accelerators,
            ages=schedule.ages,
            waits=schedule.waits,
        )
        done.append(result)
        scales.append(scale)
        put_off = [(draw.number, draw.prompt) for draw in machine.draws if draw.fate is Fate.DEFERRED]
        watch.step_done(number, result, put_off)
        return result

    while len(done) < steps or (steps == 0 and schedule.epoch < epochs):
        step()
    count = len(done)
    schedule.drain()
    while schedule.deferred:
        step()
    samples = sum(s.samples for s in done)
    scale = sum(f * s.samples for f, s in zip(scales, done, strict=True)) / samples
    unconditioned = min(scale * draws.model.mean_tokens, cap)
    return SimulatedRun(tuple(done[:count]), tuple(done[count:]), spec.prompts_per_step, unconditioned)


def _scaled(lengths: RoundLengths, scale: float) -> RoundLengths:
    def natural(key: SampleKey, prompt: str) -> int:
        return max(1, min(lengths.cap_tokens, round(scale * lengths.natural(key, prompt))))

    return replace(lengths, natural=natural, expected_tokens=scale * lengths.expected_tokens)


def simulate_plan(
    plan: Plan,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    *,
    steps: int,
    prompts: int = 4096,
    seed: int = 0,
    drift_per_step: float = 0.0,
    switch_s: float = 0.0,
    watch: Watch | None = None,
    cluster: Cluster | None = None,
) -> SimulatedRun:
    """Simulate a plan as written, hand edits included, from an epoch on that has a history where its mode learns from
    one; arguments as of `simulate_run`. `cluster`: names the networks that weights cross; None: they take no time.

    Raises InputError if the profile lacks its layout or update, or if an engine cannot hold a whole sequence. A trace
    that was sampled under a lower cap is extrapolated, with a warning.
    """
    spec = plan.job.round_spec(job.rollout.max_response_tokens, job.algorithm.dynamic_sampling)
    short, long = round_costs(plan.job, profile, job.search.drafts, cluster)
    for kind in (short, long):
        if kind.decode.kv_capacity_tokens < job.rollout.longest_tokens:
            raise InputError(
                f"an engine of {kind.decode.key} holds {kind.decode.kv_capacity_tokens} KV tokens, the job's longest "
                f"sequence has {job.rollout.longest_tokens}"
            )
    model = fit_lengths(trace, job.rollout.max_response_tokens, seed)
    caution = extrapolated(model, trace)
    if caution is not None:
        warnings.warn(caution, stacklevel=2)
    draws = Draws(model, seed, max(spec.short_samples, 1))
    reward = scoring(plan.job, profile)
    return simulate_run(
        spec,
        short,
        long,
        reward,
        draws,
        steps,
        prompts,
        drift_per_step=drift_per_step,
        switch_s=switch_s,
        history=True,
        watch=watch,
    )
