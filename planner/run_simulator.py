"""A whole run on a virtual clock: one Schedule, short and long rounds as they come, as the executor would have it.

Where columns give the steady state, this gives a run with its transients: the queue starts empty, epochs end. It is
what tests hold the columns against, and what predicts a run of so many steps, or a plan that was edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plans.job import Job
from ..plans.plan import Plan, RoundRollout, RoundTrain
from ..profiles.lengths import LengthTrace
from ..profiles.schema import Profile
from ..rounds.schedule import RoundSpec, Schedule
from .costs import DecodeCost, RewardCost, TrainCost, decode_cost, reward_cost, train_cost
from .draws import Draws, RoundLuck, prompt_name
from .length_model import fit_lengths
from .simulator import simulate_round


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of round is run."""

    decode: DecodeCost
    max_num_seqs: int
    train: TrainCost


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step. Seconds; `tokens` with prompts, `response_tokens` without; `deferred`: prompts queued after it."""

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

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.rollout_s + self.reward_exposed_s + self.train_s + self.sync_s


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The steps of a run, and of what it still owed when they were done.

    Attributes:
        steps: as asked for.
        settling: the rounds that the prompts still deferred need, run to the end of their queue: a run that put its
            long prompts off has not saved their time.
        unconditioned_tokens: mean length of the model.
    """

    steps: tuple[SimulatedStep, ...]
    settling: tuple[SimulatedStep, ...]
    unconditioned_tokens: float

    def seconds_per_sample(self) -> float:
        """Total seconds over trained samples, what it still owed included."""
        every = (*self.steps, *self.settling)
        return sum(s.step_s for s in every) / sum(s.samples for s in every)

    def length_ratio(self) -> float:
        """Mean trained length over the unconditioned mean, what it still owed included."""
        every = (*self.steps, *self.settling)
        return sum(s.response_tokens for s in every) / sum(s.samples for s in every) / self.unconditioned_tokens

    def long_share(self) -> float:
        """Share of the steps that were long rounds."""
        return sum(s.kind == "long" for s in self.steps) / len(self.steps)


def simulate_run(
    spec: RoundSpec, short: Kind, long: Kind, reward: RewardCost, draws: Draws, steps: int, prompts: int
) -> SimulatedRun:
    """Run `steps` steps over epochs of `prompts` synthetic prompts."""
    schedule = Schedule(spec, [prompt_name(i, 0) for i in range(prompts)], seed=draws.seed)
    luck = RoundLuck(draws, spec.dynamic_sampling)

    def step() -> SimulatedStep:
        machine = schedule.begin()
        kind = long if machine.kind == "long" else short
        luck.begin()
        times = simulate_round(machine, luck.lengths(), kind.decode, reward, kind.max_num_seqs)
        outcome = schedule.end(machine)
        lengths = [(draws.prompt_tokens(g.prompt), t) for g in outcome.trained for t in g.tokens]
        tokens = sum(p + t for p, t in lengths)
        return SimulatedStep(
            kind=machine.kind,
            rollout_s=times.decode_end_s,
            reward_exposed_s=times.reward_exposed_s,
            train_s=kind.train.update_s(tokens, sum((p + t) ** 2 for p, t in lengths)),
            sync_s=kind.decode.sync_s,
            groups=len(outcome.trained),
            samples=len(lengths),
            tokens=tokens,
            response_tokens=sum(t for _, t in lengths),
            deferred=len(schedule.deferred),
        )

    done = tuple(step() for _ in range(steps))
    settling = []
    while schedule.deferred:
        # Nothing fresh: the schedule then runs long rounds until the queue is empty.
        state = schedule.state()
        state["settled"], state["fresh"] = sorted([*state["settled"], *state["fresh"]]), []
        schedule.restore(state)
        settling.append(step())
    return SimulatedRun(done, tuple(settling), draws.model.mean_tokens)


def simulate_plan(
    plan: Plan, job: Job, profile: Profile, trace: LengthTrace, *, steps: int, prompts: int = 4096, seed: int = 0
) -> SimulatedRun:
    """Simulate a plan as written, hand edits included. Raises ValueError if the profile lacks its layout or update."""
    rounds = plan.job.rounds
    issue = rounds.short.issue
    spec = RoundSpec(
        mode=plan.job.bias.mode,
        prompts_per_step=plan.job.issue.prompts_per_step,
        samples_per_prompt=plan.job.issue.samples_per_prompt,
        max_tokens=job.rollout.max_response_tokens,
        short_prompts=issue.prompts,
        short_samples=issue.samples,
        cutoff_tokens=rounds.short.cutoff_tokens,
        copies=rounds.long.issue.copies if rounds.long else 1,
        dynamic_sampling=job.algorithm.dynamic_sampling,
    )
    short = _kind(profile, rounds.short.rollout, rounds.short.train)
    long = _kind(profile, rounds.long.rollout, rounds.long.train) if rounds.long else short
    draws = Draws(fit_lengths(trace, job.rollout.max_response_tokens, seed), seed, max(issue.samples, 1))
    return simulate_run(spec, short, long, reward_cost(profile.reward, plan.job.reward.workers), draws, steps, prompts)


def _kind(profile: Profile, rollout: RoundRollout, train: RoundTrain) -> Kind:
    layouts = {(r.tp, r.engines): r for r in profile.rollout}
    micro = {(t.dp, t.micro_batch_tokens): t for t in profile.train}
    if (rollout.tp, rollout.engines) not in layouts:
        raise ValueError(f"the profile has no layout of {rollout.engines} engines with tp {rollout.tp}; profile again")
    if (train.dp, train.micro_batch_tokens) not in micro:
        raise ValueError(f"the profile has no micro-batch of {train.micro_batch_tokens} tokens; profile again")
    return Kind(
        decode_cost(profile, layouts[rollout.tp, rollout.engines]),
        rollout.max_num_seqs,
        train_cost(micro[train.dp, train.micro_batch_tokens]),
    )
