"""RollPacker's rounds with its quotas: each task fills its own share of the batch (arXiv 2509.21009, `bs_d`).

A task's prompts race among themselves only, so the task with the longest answers sets the time, and no task is trained
less than its share. One `RaceRound` per task, all on the same engines, is such a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.lengths.table_lengths import copula_tokens
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.reference_round import RoundLengths, simulate_round
from rlplan.planner.simulate.round_arrays import RoundDraws, RoundTimes
from rlplan.planner.solve import solve
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import Plan
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.machines.events import Abort, Action, Event, Issue, SampleKey, Score
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.machines.race import RaceRound
from rlplan.rounds.round_spec import RoundKind

from .case import PROMPT_TOKENS, Case, Figures, RoundPhases, no_inputs


class QuotaRound:
    """One race per task, side by side, with the interface of a `Round`; draws are numbered over all races."""

    def __init__(self, races: list[RaceRound], draws: int) -> None:
        self._races, self._draws = races, draws  # each race has as many draws, and no refills

    @property
    def done(self) -> bool:
        """Every task has its share."""
        return all(race.done for race in self._races)

    def start(self) -> list[Action]:
        """Issue all tasks' draws."""
        return [self._outer(task, a) for task, race in enumerate(self._races) for a in race.start()]

    def handle(self, event: Event) -> list[Action]:
        """Pass an event to the race of its task; the actions that result."""
        task, draw = divmod(event.key.draw, self._draws)
        inner = type(event)(SampleKey(draw, event.key.sample), *_rest(event))
        return [self._outer(task, action) for action in self._races[task].handle(inner)]

    def _outer(self, task: int, action: Action) -> Action:
        key = SampleKey(task * self._draws + action.key.draw, action.key.sample)
        if isinstance(action, Issue):
            return Issue(key, action.prompt, action.max_tokens, action.cutoff_tokens)
        return Abort(key) if isinstance(action, Abort) else Score(key)


def _rest(event: Event) -> list[object]:
    return [getattr(event, name) for name in event.__dataclass_fields__ if name != "key"]


@dataclass(frozen=True)
class Operated:
    """RollPacker's operating point: mean rollout seconds by kind of round, preemptions a round, bias, reward waits."""

    short_s: float
    long_s: float
    preemptions: float
    length_ratio: float


class OperatingPoint:
    """Simulates short and long rounds at the published over-issue, on any engines, with the same random draws."""

    def __init__(self, case: Case, figures: Figures, rho: float, rounds: int = 40, seed: int = 0) -> None:
        self._case, self._rounds = case, rounds
        tasks = figures.tasks()
        self._target = case.prompts_per_step // len(tasks)
        self._issued = int(self._target * case.prompts_factor)
        self._width = round(case.samples_per_prompt * case.samples_factor)
        self._drawn = [
            np.ceil(
                np.minimum(
                    copula_tokens(figures.cdf(task), rho, rounds * self._issued, 2 * self._width, seed + 50 + number),
                    case.cap_tokens,
                )
            )
            .astype(np.int64)
            .reshape(rounds, self._issued, 2 * self._width)
            for number, task in enumerate(tasks)
        ]

    def operate(self, cost: DecodeCost) -> Operated:
        """Run short rounds, then long rounds of what they deferred."""
        case, n = self._case, self._case.samples_per_prompt
        seconds, preempted, trained, unconditioned = [], [], 0, 0.0
        queue: list[NDArray[np.int64]] = []
        for number in range(self._rounds):
            lengths = np.concatenate([drawn[number] for drawn in self._drawn])
            races = [
                RaceRound([str(p) for p in range(self._issued)], self._target, n, self._width, case.cap_tokens)
                for _ in self._drawn
            ]
            times = self._run(QuotaRound(races, self._issued), lengths[:, : self._width], cost)
            seconds.append(times.end_s)
            preempted.append(times.preemptions)
            unconditioned += n * float(lengths.mean(axis=1).sum())
            for task, race in enumerate(races):
                outcome = race.outcome()
                trained += sum(sum(group.tokens) for group in outcome.trained)
                # A deferred prompt is drawn afresh: the second half of its row.
                queue += [lengths[task * self._issued + int(p), self._width :] for p in outcome.prompts[Fate.DEFERRED]]
        long_s = []
        batch = self._target * len(self._drawn)
        for start in range(0, len(queue) - batch + 1, batch):
            rows = np.stack(queue[start : start + batch])[:, :n]
            machine = RaceRound([str(p) for p in range(batch)], batch, n, n, case.cap_tokens, kind="long")
            long_s.append(self._run(machine, rows, cost).end_s)
        trained += int(sum(row[:n].sum() for row in queue))
        return Operated(
            short_s=float(np.mean(seconds)),
            long_s=float(np.mean(long_s)),
            preemptions=float(np.mean(preempted)),
            length_ratio=trained / unconditioned,
        )

    @property
    def long_share(self) -> float:
        """Share of the steps that are long rounds."""
        deferred = self._issued - self._target
        return deferred / (deferred + self._target)

    def _run(self, machine: QuotaRound | RaceRound, lengths: NDArray[np.int64], cost: DecodeCost) -> RoundTimes:
        issued = RoundLengths(
            natural=lambda key, prompt: int(lengths[key.draw, key.sample]),
            prompt_tokens=lambda prompt: PROMPT_TOKENS,
            reward=lambda key, prompt: 0.0,
            cap_tokens=self._case.cap_tokens,
            expected_tokens=float(lengths.mean()),
        )
        return simulate_round(machine, issued, cost, RewardCost(1, 0.0, 0.0), cost.max_sequences)  # type: ignore[arg-type]


# Step seconds of veRL and RollPacker, and the ablation: rollouts are simulated, other phases are as published.
#
# RollPacker's parts, added one by one as in its table 2:
#     tail     its rounds with quotas instead of plain ones; rewards and updates after the rollout
#     reward   rewards during the rollout: the published seconds after the last token remain
#     planner  its rule: a kind of round in which sequences are preempted gets twice the TP, until none are
#     trainer  streaming: the published part of a long round's update that its rollout does not hide remains


def planned(
    point: OperatingPoint, cost_of: Callable[[int], DecodeCost | None], tp: int, operated: Operated
) -> Operated:
    """The operating point `operated` at `tp`, after RollPacker's TP rule; `cost_of(tp)` is None for no such engine."""
    while operated.preemptions > 0 and (wider := cost_of(2 * tp)) is not None:
        tp, operated = 2 * tp, point.operate(wider)
    return operated


def ablation(
    case: Case,
    plain_rollout_s: float,
    fixed: Operated,
    switched: Operated,
    share: float,
    short: RoundPhases,
    long: RoundPhases,
) -> dict[str, float]:
    """Mean seconds of a step with RollPacker's parts added one by one, "verl" first, "trainer" with all parts.

    Args:
        plain_rollout_s: rollout of a plain round.
        fixed, switched: the operating point on the published engines, and after the TP rule.
        share: of long rounds among the steps.
        short, long: the published phases.
    """
    plain = case.plain
    unhidden_s = case.race.long_train_unhidden_s
    if unhidden_s is None:
        unhidden_s = max(plain.train_s, long.train_s)

    def cycle_s(rollout: Operated, reward_s: tuple[float, float], long_train_s: float) -> float:
        in_short = rollout.short_s + reward_s[0] + short.train_s + short.sync_s
        in_long = rollout.long_s + reward_s[1] + long_train_s + long.sync_s
        return (1 - share) * in_short + share * in_long + case.race.other_s

    waited, beside = (plain.reward_s, plain.reward_s), (short.reward_s, long.reward_s)
    return {
        "verl": plain_rollout_s + plain.reward_s + plain.train_s + plain.sync_s,
        "tail": cycle_s(fixed, waited, unhidden_s),
        "reward": cycle_s(fixed, beside, unhidden_s),
        "planner": cycle_s(switched, beside, unhidden_s),
        "trainer": cycle_s(switched, beside, long.train_s),
    }


# Plans of `rlplan solve` for the published job on the published GPUs, beside the published systems.
#
# Weight sync and reward latency are the published ones. Engines may have any TP; updates are planned by the shipped
# profile's law (packed micro-batches), which is much of the gain, so the result also has each plan with the published
# seconds of updates.


def plan_of(cluster: Cluster, job: Job, profile: Profile, trace: LengthTrace, bias_budget: float | None) -> Plan:
    """The plan of `rlplan solve`; without a bias budget it chooses among unbiased modes only."""
    return solve(cluster, job, profile, trace, no_inputs(), SolveOptions(bias_budget=bias_budget)).plan


def summary(plan: Plan, verl_s: float, rollpacker_s: float, short: RoundPhases, long: RoundPhases) -> dict[str, Any]:
    """A plan beside the two published systems, all as simulated. Seconds are of a step of P x n trained samples."""
    samples = plan.job.issue.prompts_per_step * plan.job.issue.samples_per_prompt
    step_s = plan.predicted.seconds_per_sample * samples
    phases = plan.predicted.phases_s
    share = plan.predicted.rounds.long.share if plan.predicted.rounds.long else 0.0
    their_train_s = (1 - share) * short.train_s + share * long.train_s
    with_theirs_s = step_s - phases.train + their_train_s
    rounds = plan.job.rounds
    return {
        "mode": plan.job.bias.mode,
        "step_s": step_s,
        "speedup_over_verl": verl_s / step_s,
        "speedup_over_rollpacker": rollpacker_s / step_s,
        "length_ratio": plan.predicted.length_ratio,
        "phases_s": phases.model_dump(),
        "best_sync_step_s": plan.predicted.baseline.seconds_per_sample * samples,
        "published_train": {
            "step_s": with_theirs_s,
            "speedup_over_verl": verl_s / with_theirs_s,
            "speedup_over_rollpacker": rollpacker_s / with_theirs_s,
        },
        "short": {
            "prompts": rounds.short.issue.prompts,
            "samples": rounds.short.issue.samples,
            "cutoff_tokens": rounds.short.cutoff_tokens,
            "tp": rounds.short.rollout.tp,
            "train": rounds.short.train.model_dump(),
        },
        "long": rounds.long
        and {
            "share": share,
            "issue": rounds.long.issue.model_dump() | {"queue": rounds.long.queue is not None},
            "tp": rounds.long.rollout.tp,
            "train": rounds.long.train.model_dump(),
        },
        "gap": plan.solver.gap,
        "candidates": plan.solver.candidates,
    }


# Figure 11: seconds of a rollout, averaged over a cycle, by over-issue of prompts (f_p) and of samples (f_n).
#
# The published statistic is the worst case: the script that drew the figure takes the longest short round and the
# longest long round of a setting. With (P0, 1.25) a cycle has five iterations, so the worst of `ITERATIONS` = 5 short
# rounds is expected here, over many simulated rounds.
#
# Two of the seven published points calibrate two unknowns: (1, 1.5) tells the dependence within a prompt (rho),
# because no other point moves as much with it: groups all of long samples hold such rounds up; (1.25, 1.25), where
# rounds are shortest, tells the seconds that a round takes besides decoding. The seconds of the plain round set the
# speed of decoding. All seven are then compared.

ITERATIONS = 5
RHO_POINT, OVERHEAD_POINT, PLAIN = (1.0, 1.5), (1.25, 1.25), (1.0, 1.0)

# Simulated short rounds of a setting: 64 times the worst of five, whose mean is then within 2 % of the truth.
_ROUNDS = 320
_PROMPT_TOKENS = 256
# The published seconds are of the rollout alone, so rewards take no time.
_NO_REWARD = RewardCost(workers=1, per_sample_s=0.0, delay_s=0.0)

Factors = tuple[float, float]


@dataclass(frozen=True)
class Calibrated:
    """Calibrated values: dependence (rho), seconds of a round besides decoding, factor on the engines' seconds."""

    rho: float
    overhead_s: float
    factor: float


class Sweep:
    """Simulates settings of one job on one set of engines.

    Without rewards all times are proportional to the engines' seconds, and what a round takes besides is added to them;
    so a setting is simulated once, at speed 1 and overhead 0, and both unknowns are found in closed form.

    Args:
        cdfs: of each task the (tokens, share within them) of its lengths; tasks have equal shares of the prompts.
        cost: engines as a profile has them.
    """

    def __init__(
        self,
        cdfs: Sequence[list[tuple[float, float]]],
        cost: DecodeCost,
        prompts: int,
        samples: int,
        cap_tokens: int,
        seed: int = 0,
    ) -> None:
        self._cdfs, self._cost, self._prompts, self._samples, self._cap = cdfs, cost, prompts, samples, cap_tokens
        self._seed = seed
        self._drawn: tuple[float, NDArray[np.int32]] | None = None
        self._decode_s: dict[tuple[Factors, float], list[float]] = {}

    def _lengths(self, rho: float) -> NDArray[np.int32]:
        """Lengths (rounds, prompts, samples), for over-issue up to 1.5; the random numbers do not depend on rho."""
        if self._drawn is None or self._drawn[0] != rho:
            tasks = len(self._cdfs)
            each = math.ceil(1.5 * self._prompts / tasks)
            width = math.ceil(1.5 * self._samples)
            drawn = np.empty((_ROUNDS, each, tasks, width), dtype=np.int32)
            for task, cdf in enumerate(self._cdfs):
                tokens = copula_tokens(cdf, rho, _ROUNDS * each, width, self._seed + task)
                drawn[:, :, task] = np.ceil(np.minimum(tokens, self._cap)).reshape(_ROUNDS, each, width)
            self._drawn = rho, drawn.reshape(_ROUNDS, each * tasks, width)
        return self._drawn[1]

    def decode_s(self, factors: Factors, rho: float) -> list[float]:
        """Seconds of short rounds with this over-issue, at speed 1 and without overhead."""
        if (factors, rho) not in self._decode_s:
            issued, width = round(self._prompts * factors[0]), round(self._samples * factors[1])
            round_kind = RoundKind("short", issued, self._prompts, self._samples, width, self._cap)
            prompt_tokens = np.full(issued, _PROMPT_TOKENS, dtype=np.int32)
            seconds = []
            for drawn in self._lengths(rho):
                lengths = np.ascontiguousarray(drawn[:issued, :width])
                round_draws = RoundDraws(lengths, prompt_tokens, self._cap, float(lengths.mean()))
                simulated = simulate_one_round(
                    round_kind, round_draws, self._cost, _NO_REWARD, self._cost.max_sequences
                )
                seconds.append(simulated.times.end_s)
            self._decode_s[factors, rho] = seconds
        return self._decode_s[factors, rho]

    def cycle_s(self, factors: Factors, calibrated: Calibrated) -> float:
        """The published statistic: worst short and worst long round, weighed as they come in a cycle."""
        return calibrated.overhead_s + calibrated.factor * self._cycle(factors, calibrated.rho)

    def _cycle(self, factors: Factors, rho: float) -> float:
        short = worst(self.decode_s(factors, rho))
        if factors[0] <= 1.0:
            return short
        per_long = 1.0 / (factors[0] - 1.0)  # a short round leaves (f_p - 1) P prompts
        return (per_long * short + worst(self.decode_s(PLAIN, rho))) / (per_long + 1.0)

    def calibrate(self, published: dict[Factors, float]) -> Calibrated:
        """Fit rho, the overhead and the speed to `RHO_POINT`, `OVERHEAD_POINT` and the plain round."""
        plain_s = published[PLAIN]

        def calibrated(rho: float) -> Calibrated:
            share = self._cycle(OVERHEAD_POINT, rho) / self._cycle(PLAIN, rho)
            overhead_s = max(0.0, (published[OVERHEAD_POINT] - plain_s * share) / (1.0 - share))
            return Calibrated(rho, overhead_s, (plain_s - overhead_s) / self._cycle(PLAIN, rho))

        rho = _root(lambda r: self.cycle_s(RHO_POINT, calibrated(r)), published[RHO_POINT], 0.0, 0.9, 0.004)
        return calibrated(rho)

    def speed(self, plain_s: float, rho: float, overhead_s: float) -> float:
        """The factor on the engines' seconds with which a plain round takes `plain_s` on average."""
        return (plain_s - overhead_s) / float(np.mean(self.decode_s(PLAIN, rho)))


def _root(rises: Callable[[float], float], wanted: float, low: float, high: float, grain: float) -> float:
    """The argument at which a rising function is `wanted`, by bisection; `low` or `high` if it never is."""
    while high - low > grain:
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < wanted else (low, middle)
    return (low + high) / 2


def worst(seconds: list[float]) -> float:
    """Expected longest of `ITERATIONS` rounds."""
    whole = len(seconds) // ITERATIONS * ITERATIONS
    return float(np.array(seconds[:whole]).reshape(-1, ITERATIONS).max(axis=1).mean())


def rmse(points: Sequence[tuple[float, float, float, float]], plain_s: float) -> float:
    """Root mean square error of (f_p, f_n, published, predicted) points, over the plain round's seconds."""
    return math.sqrt(sum((p - s) ** 2 for _, _, s, p in points) / len(points)) / plain_s
