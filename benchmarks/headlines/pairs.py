"""Pairs of plans whose difference a long run in the true world knows, held against what `rlplan diff` says of them.

Each of 20 worlds is a job with a shipped profile; every second one states a quarter of its error, as one's own
measurements do. The truth is drawn from what the profile says of its own error, and
its lengths come from a population of prompts of which the trace shows a few. Three plans are solved from profile and
trace; each two of them are a pair. How far decode steps are off is drawn as the residues of the served measurements
that the profile rests on are taken to be (tools/served_fit.py): one level, and a smooth field over sequences
and ranks; the planner states its error in other terms (planner/choose/cost_error.py).
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.round_costs import RoundCosts, round_costs
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.planner.solve import solve
from rlplan.plans.diff.change import CERTAIN
from rlplan.plans.diff.job_diff import diff_jobs
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import InputFile, Inputs, LengthsInput, Plan, ProfileFile
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.laws.measured_fit import MEAN_OVER_DEVIATION
from rlplan.profiles.laws.train_error import PHYSICS_ERROR
from rlplan.profiles.length_trace import LengthRow, LengthTrace
from rlplan.profiles.library import library_profile
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.machines.events import Abort, Action, Finished, Issue, ReachedCutoff, SampleKey, Scored
from rlplan.rounds.machines.round import Round
from rlplan.rounds.round_spec import Mode
from rlplan.rounds.schedule import Schedule
from rlplan.tools.served_fit import MISSED_SD, REACH_OCTAVES

# A long run of a plan in a true world, simulated step by step apart from planner/simulate: the truth of pairs.py.
#
# A `World` knows what a profile and a trace can only estimate: every prompt's law of lengths, and by which factors
# decode steps, updates and weight transfers really are off the profile. The round machines and the schedule are those
# that the executor runs (rounds/); the engines are the plainest possible: continuous batching in whole decode steps,
# first come first served, no preemption, each step's seconds from the sequences and KV tokens that it has.

PROMPT_TOKENS = 128
Draw = Callable[[int, int], NDArray[np.int64]]
"""Tokens of the samples of one draw, from (number of the prompt, number of its draw); uncut."""

BATCHES = 10


@dataclass(frozen=True)
class World:
    """What is true of a job.

    Attributes:
        decode: log factor on a decode step's seconds by log2 of tp and octave of sequences, shape (4, 12).
        update, sync: log factors on an update's seconds, by the ranks of a replica, and on a transfer's.
        draw: the lengths of responses; the same prompt drawn the k-th time has the same in every plan.
    """

    decode: NDArray[np.float64]
    update: dict[int, float]
    sync: float
    draw: Draw
    cap_tokens: int

    def factors(self, tp: int, most: int) -> list[float]:
        """Factors on the seconds of decode steps of 0 to `most` sequences."""
        octaves = np.log2(np.maximum(np.arange(most + 1), 1))
        row = self.decode[int(math.log2(tp))]
        return list(map(float, np.exp(np.interp(octaves, np.arange(len(row)), row))))

    def update_s(self, train: TrainCost, tokens: float, squares: float) -> float:
        """Seconds of an update."""
        return math.exp(self.update[train.layout.replica]) * train.update_s(tokens, squares)


class _Engine:
    """One engine; time stands at a step's end."""

    def __init__(self, cost: DecodeCost, factors: list[float], max_num_seqs: int) -> None:
        self.cost, self.factors, self.most = cost, factors, max_num_seqs
        self.now, self.step, self.kv, self.joining_s = 0.0, 0, 0, 0.0
        self.running: dict[SampleKey, int] = {}  # the step at which each was let in
        self.waiting: list[tuple[SampleKey, int, int | None]] = []
        self.events: list[tuple[int, int, SampleKey, bool]] = []
        self.count = 0
        self.cached: set[int] = set()  # draws whose prompt it has prefilled

    def seconds(self, steps: int) -> float:
        """Of so many steps from now on."""
        n = len(self.running)
        kv = steps * self.kv + n * steps * (steps - 1) / 2
        return self.joining_s + self.factors[n] * (steps * self.cost.base_s(n) + self.cost.c * kv)

    def pass_steps(self, steps: int) -> None:
        if steps > 0:
            self.now += self.seconds(steps)
            self.step += steps
            self.kv += steps * len(self.running)
            self.joining_s = 0.0

    def drop_gone(self) -> None:
        """Forget events of samples that were aborted."""
        while self.events and self.events[0][2] not in self.running:
            heapq.heappop(self.events)

    def due(self) -> float:
        """When the next sample ends or reaches its cutoff; infinite if nothing runs."""
        self.drop_gone()
        return self.now + self.seconds(self.events[0][0] - self.step) if self.events else math.inf

    def reach(self, time_s: float) -> None:
        """Pass whole steps until `time_s` is reached, none of which ends a sample."""
        if not self.running:
            self.now = max(self.now, time_s)
            return
        self.drop_gone()
        low, high = 0, self.events[0][0] - self.step
        while low < high:
            middle = (low + high) // 2
            if self.now + self.seconds(middle) < time_s and middle < high:
                low = middle + 1
            else:
                high = middle
        self.pass_steps(low if time_s > self.now else 0)

    def admit(self) -> None:
        while self.waiting and len(self.running) < self.most:
            key, tokens, cutoff = self.waiting.pop(0)
            self.running[key] = self.step
            cached = PROMPT_TOKENS - self.cost.block_tokens if key.draw in self.cached else 0
            self.cached.add(key.draw)
            self.joining_s += self.factors[1] * self.cost.admit_s(PROMPT_TOKENS, cached)
            self.kv += PROMPT_TOKENS
            for at, ends in ((tokens, True), *(((cutoff, False),) if cutoff is not None and cutoff < tokens else ())):
                self.count += 1
                heapq.heappush(self.events, (self.step + at, self.count, key, ends))

    def remove(self, key: SampleKey) -> None:
        if key in self.running:
            self.kv -= PROMPT_TOKENS + self.step - self.running.pop(key)
        else:
            self.waiting = [each for each in self.waiting if each[0] != key]


def rollout_s(machine: Round, world: World, costs: RoundCosts, drawn: dict[str, int]) -> float:
    """Seconds of a round until it is decoded; `drawn` counts each prompt's draws over the run."""
    factors = world.factors(costs.decode.key.tp, costs.max_num_seqs)
    engines = [_Engine(costs.decode, factors, costs.max_num_seqs) for _ in range(costs.decode.key.engines)]
    where: dict[SampleKey, int] = {}
    loads = [0] * len(engines)
    rows: dict[int, NDArray[np.int64]] = {}
    tokens: dict[SampleKey, tuple[int, bool]] = {}

    def act(actions: list[Action], now: float) -> None:
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            key = action.key
            if isinstance(action, Issue):
                if key.draw not in rows:
                    times = drawn[action.prompt] = drawn.get(action.prompt, -1) + 1
                    rows[key.draw] = world.draw(int(action.prompt[1:]), times)
                natural = int(rows[key.draw][key.sample])
                limit = min(action.max_tokens, world.cap_tokens)
                tokens[key] = min(natural, limit), natural >= limit
                place = min(range(len(engines)), key=loads.__getitem__)
                where[key] = place
                loads[place] += 1
                engines[place].reach(now)
                engines[place].waiting.append((key, tokens[key][0], action.cutoff_tokens))
                engines[place].admit()
            elif isinstance(action, Abort):
                place = where.pop(key, -1)
                if place >= 0:
                    engines[place].reach(now)
                    engines[place].remove(key)
                    loads[place] -= 1
                    engines[place].admit()
            else:  # scores take no time here
                todo += machine.handle(Scored(key, 0.0))

    now = 0.0
    act(machine.start(), now)
    while not machine.done:
        engine = min(engines, key=_Engine.due)
        engine.pass_steps(engine.events[0][0] - engine.step)
        now = engine.now
        _, _, key, ends = heapq.heappop(engine.events)
        if ends:
            engine.remove(key)
            loads[where.pop(key)] -= 1
            engine.admit()
            act(machine.handle(Finished(key, *tokens[key])), now)
        else:
            act(machine.handle(ReachedCutoff(key)), now)
    return now


def seconds_per_sample(
    plan: Plan, profile: Profile, cluster: Cluster, world: World, rounds: int, seed: int
) -> tuple[float, float]:
    """(seconds per trained sample over a long run of `plan` in `world`, relative standard error).

    Raises AssertionError for levers that are not simulated here.
    """
    planned = plan.job
    spec = planned.round_spec(world.cap_tokens)
    kinds = round_costs(planned, profile, cluster=cluster)
    assert all(kind.change is None and kind.decode.balance is None for kind in kinds), "a lever that is not simulated"
    schedule = Schedule(spec, [f"p{number}" for number in range(3 * rounds * spec.prompts_per_step)], seed)
    drawn: dict[str, int] = {}
    seconds, samples = np.zeros(rounds), np.zeros(rounds)
    layout = None
    for number in range(rounds):
        machine = schedule.begin()
        kind = kinds[machine.kind == "long"]
        took_s = rollout_s(machine, world, kind, drawn)
        outcome = schedule.end(machine)
        trained = np.array([PROMPT_TOKENS + t for group in outcome.trained for t in group.tokens], dtype=float)
        sums = float(trained.sum()), float((trained**2).sum())
        turns_s = kind.decode.turns_beside(kind.train.layout)
        sync_s = turns_s + math.exp(world.sync) * (kind.decode.sync_beside(kind.train.layout) - turns_s)
        seconds[number] = took_s + world.update_s(kind.train, *sums) + sync_s
        samples[number] = len(trained)
        layout = layout or kind.decode.key
        assert kind.decode.key == layout, "a change of engines is not simulated"
    first = rounds // 10  # until the queue of deferred prompts is as full as it is later
    ratio = seconds[first:].sum() / samples[first:].sum()
    batches = [
        s.sum() / n.sum()
        for s, n in zip(*(np.array_split(v[first:], BATCHES) for v in (seconds, samples)), strict=True)
    ]
    return float(ratio), float(np.std(batches, ddof=1) / math.sqrt(BATCHES) / ratio)


WORLDS, SEED, PROCESSES = 20, 35, 2
ROUNDS = 240
"""Steps of a true run."""

SAMPLES, MOST_SAMPLES = 8, 64
MEMORY_BYTES = {"H100": 80 * 10**9, "H800": 80 * 10**9, "H200": 141 * 10**9}
MEASURED = 0.25
"""Errors of a measured profile over those of a shipped one."""

LARGE = 0.05
"""True differences above it should be told."""


@dataclass(frozen=True)
class Pair:
    """A pair of plans.

    Attributes:
        claimed: the relative difference that the headline states, its stated standard deviation.
        true: that of the true runs, and its standard error.
        told: whether the headline calls one of the plans faster.
    """

    names: tuple[str, str]
    claimed: tuple[float, float]
    true: tuple[float, float]
    told: bool


def population(rng: np.random.Generator, number: int, cap_tokens: int) -> Draw:
    """Lengths of a job's prompts: log-normal within a prompt, two heaps of prompts."""
    middle = math.log(cap_tokens) - rng.uniform(2.0, 3.2)
    between, within, hard = rng.uniform(0.4, 0.9), rng.uniform(0.3, 0.8), rng.uniform(0.05, 0.25)

    def draw(prompt: int, times: int) -> NDArray[np.int64]:
        of_prompt = np.random.default_rng([SEED, number, 1, prompt])
        location = middle + between * of_prompt.standard_normal() + 1.2 * (of_prompt.random() < hard)
        of_draw = np.random.default_rng([SEED, number, 2, prompt, times])
        tokens = np.exp(location + within * of_draw.standard_normal(MOST_SAMPLES))
        return np.asarray(np.clip(np.rint(tokens), 1, 10 * cap_tokens), dtype=np.int64)

    return draw


def true_world(rng: np.random.Generator, profile: Profile, draw: Draw, cap_tokens: int) -> World:
    """A world in which the profile is off by as much as it says."""
    evidence, law = profile.rollout[0].evidence, profile.train_law
    assert law is not None, "a shipped profile has a law"
    places = np.array(list(itertools.product(np.arange(4.0), np.arange(12.0))))
    reach = np.array([REACH_OCTAVES["ranks"], REACH_OCTAVES["sequences"]])
    apart = (((places[:, None] - places[None]) / reach) ** 2).sum(axis=-1)
    error = evidence["decode"].error
    field = min(MISSED_SD, error / 2)
    missed = rng.multivariate_normal(np.zeros(len(places)), field**2 * np.exp(-apart / 2), method="eigh")
    level = rng.normal(0.0, math.sqrt(error**2 - field**2))
    common = rng.normal(0.0, law.error / MEAN_OVER_DEVIATION)
    physics = (PHYSICS_ERROR if law.physics_error is None else law.physics_error) / MEAN_OVER_DEVIATION
    update = {replica: common + (rng.normal(0.0, physics) if replica > 1 else 0.0) for replica in (1, 2, 4, 8, 16, 32)}
    return World(level + missed.reshape(4, 12), update, rng.normal(0.0, evidence["sync"].error), draw, cap_tokens)


def documents(number: int, rng: np.random.Generator) -> tuple[Cluster, Job, Profile, int]:
    """(cluster, job, profile, prompts of the trace) of a world."""
    gpu = str(rng.choice(list(MEMORY_BYTES)))
    model = str(rng.choice(["Qwen2.5-7B", "Qwen2.5-14B", "Llama-3.1-8B"]))
    cap = int(rng.choice([2048, 4096, 8192]))
    pool = {
        "nodes": 1, "accelerators": {"kind": "cuda", "name": gpu, "per_node": 8, "memory_bytes": MEMORY_BYTES[gpu]},
        "cores": 112, "host_memory_bytes": 2 * 10**12, "usd_per_node_hour": 20.0,
    }  # fmt: skip
    cluster = Cluster.model_validate({"rlplan_cluster": 1, "name": "pod", "pools": {"gpu": pool}})
    job = Job.model_validate(
        {
            "rlplan_job": 1, "name": "j", "model": {"path": model, "dtype": "bfloat16"}, "data": {"path": "d.jsonl"},
            "reward": {"kind": "math", "workers": 32, "deadline_s": 2.0},
            "rollout": {
                "prompts_per_step": int(rng.choice([16, 32])), "samples_per_prompt": SAMPLES,
                "max_prompt_tokens": 512, "max_response_tokens": cap,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-6},
            "search": {"tp": [1, 2, 4], "micro_batch_tokens": [cap + 512, 2 * (cap + 512)]},
        }
    )  # fmt: skip
    profile = library_profile(gpu, model)
    return cluster, job, as_measured(profile) if number % 2 else profile, int(rng.choice([128, 256, 512]))


def as_measured(profile: Profile) -> Profile:
    """The profile with MEASURED times the errors that it states: those of a profile of one's own machines."""
    entries = [
        entry.model_copy(
            update={
                "error": MEASURED * entry.error,
                "evidence": {
                    name: each.model_copy(update={"error": MEASURED * each.error})
                    for name, each in entry.evidence.items()
                },
            }
        )
        for entry in profile.rollout
    ]
    law = profile.train_law
    assert law is not None, "a shipped profile has a law"
    physics = PHYSICS_ERROR if law.physics_error is None else law.physics_error
    law = law.model_copy(update={"error": MEASURED * law.error, "physics_error": MEASURED * physics})
    return profile.model_copy(update={"rollout": tuple(entries), "train_law": law})


def traced(draw: Draw, prompts: int, cap_tokens: int) -> LengthTrace:
    """The trace: one draw of some prompts, none of which the run has."""
    rows = [
        LengthRow(f"p{p:05d}", 0, s, min(int(t), cap_tokens), bool(t >= cap_tokens), float(s % 2), PROMPT_TOKENS)
        for p in range(prompts)
        for s, t in enumerate(draw(10**6 + p, 0)[:SAMPLES])
    ]
    return LengthTrace(rows, cap_tokens)


def plans_of(number: int, cluster: Cluster, job: Job, profile: Profile, trace: LengthTrace) -> dict[str, Plan]:
    """Three plans of a world, by name."""
    digest = f"{number:064x}"
    inputs = Inputs(
        cluster=InputFile(path="cluster.yaml", sha256=digest),
        job=InputFile(path="job.yaml", sha256=digest),
        profile=ProfileFile(path="profile.yaml", sha256=digest, provenance="derived"),
        lengths=LengthsInput(path="lengths.jsonl", sha256=digest),
    )
    other_tp = job.model_copy(update={"search": job.search.model_copy(update={"tp": (1,)})})
    wanted: list[tuple[str, Mode, Job]] = [("sync", "sync", job), ("exact", "exact", job)]
    third: list[tuple[str, Mode, Job]] = [("defer", "defer", job), ("race", "race", job), ("tp 1", "sync", other_tp)]
    wanted.append(third[number % 3])
    made: dict[str, Plan] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, mode, of in wanted:
            made[name] = solve(cluster, of, profile, trace, inputs, SolveOptions(mode=mode, seed=number)).plan
    return made


def pairs_of_world(number: int) -> list[Pair]:
    """The pairs of a world; of a world in which a mode is infeasible, those that there are."""
    rng = np.random.default_rng([SEED, number])
    cluster, job, profile, prompts = documents(number, rng)
    cap = job.rollout.max_response_tokens
    draw = population(rng, number, cap)
    world = true_world(rng, profile, draw, cap)
    try:
        plans = plans_of(number, cluster, job, profile, traced(draw, prompts, cap))
    except Infeasible as error:
        print(f"world {number}: {error}", file=sys.stderr)
        return []
    truths = {name: seconds_per_sample(plan, profile, cluster, world, ROUNDS, number) for name, plan in plans.items()}
    pairs = []
    for old, new in itertools.combinations(plans, 2):
        seconds = diff_jobs(plans[old], plans[new]).effect("seconds_per_sample")
        (a, a_error), (b, b_error) = truths[old], truths[new]
        claimed = seconds.relative or 0.0, seconds.relative_sigma or 0.0
        told = seconds.changed and not seconds.within_error
        pairs.append(Pair((old, new), claimed, (b / a - 1, b / a * math.hypot(a_error, b_error)), told))
        print(f"world {number}: {pairs[-1]}", file=sys.stderr, flush=True)
    return pairs


def pair_figures() -> dict[str, Any]:
    """The figures of all pairs.

    `sign_right`: share of the pairs of which the headline calls one faster, that are so. `uncertain_above_5`: share of
    true differences above 5 % that it calls none. `covered`: share of true differences within one stated standard
    deviation (and the standard error of the truth) of the claimed one; 0.68 if both are normal.
    """
    with ProcessPoolExecutor(PROCESSES) as pool:
        pairs = [pair for of in pool.map(pairs_of_world, range(WORLDS)) for pair in of]
    told = [pair for pair in pairs if pair.told]
    large = [pair for pair in pairs if abs(pair.true[0]) > LARGE]
    off = [(p.true[0] - p.claimed[0]) / math.hypot(p.claimed[1], p.true[1]) for p in pairs]
    return {
        "pairs": len(pairs),
        "claimed": len(told),
        "sign_right": sum((p.claimed[0] > 0) == (p.true[0] > 0) for p in told) / max(1, len(told)),
        "above_5": len(large),
        "uncertain_above_5": sum(not pair.told for pair in large) / max(1, len(large)),
        "covered": sum(abs(z) <= 1 for z in off) / max(1, len(off)),
        "certain_from": CERTAIN,
    }
