"""Compare the round program with exhaustive search on random small jobs, and time it on large ones.

    python -m benchmarks.round_optimality [--instances N] [--large N] [--seed S] [--json]

Each instance is a small job's columns with random costs on random layouts of up to four nodes, with choices of reward
workers that take cores, and update choices that shard the model in different ways, under a random bias budget, SLO,
bound on the mean step, host memory of a node, and objective. Every schedule is tried, and its seconds, USD, nodes, bias
and slow steps are summed here from the columns by the account of a cycle (planner/choose/cycle_cost.py), not by the
code that the planner uses. The program's choice must cost what the best of them costs, to 1e-9 relative, and its
certified gap must be 0; where no schedule keeps the limits, the program must say so.

A large job has a hundred and more kinds of short round on up to eight nodes and 24 update choices: about as many as
`solve` simulates. There the certified gap counts, and the CPU seconds of a solve.

    {"instances": 60, "mismatches": 0, "gap_max": 0.0, "infeasible": …, "schedules": …, "seconds": …,
     "large": {"jobs": 10, "columns": …, "worst_gap": 0.0, "slowest_s": …}}
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey, column_name
from rlplan.planner.choose.cycle_cost import CONFIDENCE_Z, SLOW_SHARE, Column
from rlplan.planner.choose.plan_limits import Limits
from rlplan.planner.choose.round_program import Solution, solve_program
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import Infeasible

from .entry import tell

TOLERANCE = 1e-9

MOST_GAP = 0.01
"""Of a large job; a larger one fails the benchmark."""


@dataclass(frozen=True)
class Instance:
    """The inputs of the round program for a small random job."""

    short: list[Column]
    long: list[Column]
    needs_long: set[DeferralRule]
    limits: Limits
    target: int


class Size(NamedTuple):
    """How large a random job is: the most layouts of one node, nodes, update choices, rules, and issues of a rule."""

    layouts: int = 3
    nodes: int = 4
    trains: int = 4
    rules: int = 5
    issues: tuple[int, ...] = (2, 8)
    rewards: int = 2


SMALL = Size()
LARGE = Size(layouts=3, nodes=8, trains=24, rules=9, issues=(2, 6, 12))


def instance(rng: random.Random, of: Size = SMALL) -> Instance:
    """A random job: up to as many layouts, rules and update choices as its size says, any of the limits."""
    target, size = rng.choice((8, 16, 32)), rng.choice((4, 8))
    counts = sorted(rng.sample(range(1, of.nodes + 1), rng.randint(1, of.nodes)))
    nodes_of = {
        EngineLayout(2**k, nodes * 2 ** (3 - k)): nodes
        for k in range(rng.randint(1, of.layouts))
        for nodes in (counts if of.nodes > 4 else rng.sample(counts, 1))
    }
    layouts, rewards = sorted(nodes_of), range(rng.randint(1, of.rewards))
    trains, mean_tokens = rng.randint(1, of.trains), rng.uniform(50, 2000)
    rules = [DeferralRule("sync", target, size, None)]
    rules += [DeferralRule("race", target + k, size + 1, None) for k in (0, 2, 4)] + [
        DeferralRule("defer", target + 2, size, None)
    ]
    rules += [DeferralRule("exact", 0, 0, 100 * cutoff) for cutoff in range(1, max(3, of.rules - 1))]
    rules = [rules[0], *rng.sample(rules[1:], rng.randint(1, of.rules))]
    deferring = {rule for rule in rules if rule.mode == "exact" or (rule.mode != "sync" and rule.prompts > target)}

    def column(key: ShortKey | LongKey, slowest: float, moved: float) -> Column:
        biased = key.deferral.mode in ("race", "defer")
        return Column(
            name=column_name(key),
            key=key,
            step_s=tuple(rng.uniform(1.0, slowest) for _ in range(trains)),
            # Dynamic sampling and an epoch's end make rounds that train fewer groups.
            groups=target * rng.choice((1.0, rng.uniform(0.7, 1.0))),
            moved=moved,
            excess_tokens=rng.uniform(-0.3, 0.1) * mean_tokens * target * size if biased else 0.0,
            excess_error=rng.uniform(0.0, 0.02) * mean_tokens * target * size if biased else 0.0,
            slow=tuple(rng.choice((0.0, rng.uniform(0.0, 0.15))) for _ in range(trains)),
            rounds=9,
        )

    short, long = [], []
    for rule in rules:
        issues = [target + more for more in of.issues] if rule.mode == "exact" else [rule.prompts]
        for layout, issued, reward in itertools.product(layouts, issues, rewards):
            moved = rng.uniform(0.05, 0.9) * target if rule in deferring else 0.0
            key = ShortKey(rule.mode, issued, rule.samples or size, rule.cutoff_tokens, layout, reward=reward)
            short.append(column(key, 10.0, moved))
        if rule in deferring:
            copies_of = (1, 2) if rule.mode == "exact" else (1,)
            for layout, copies, reward in itertools.product(layouts, copies_of, rewards):
                # Rounds of a queue train fewer prompts now and then, and take as many as they train.
                moved = target * rng.choice((1.0, rng.uniform(0.8, 1.0)))
                long.append(column(LongKey(rule, copies, layout, reward=reward), 30.0, moved))
    slowest = rng.uniform(8.0, 20.0)
    limits = Limits(
        group_size=size,
        mean_tokens=mean_tokens,
        bias_budget=rng.choice((0.0, rng.uniform(0.0, 0.3), math.inf)),
        slo=rng.random() < 0.5,
        host_memory_bytes=rng.randint(4, 26) * 10**9,
        host_bytes={layout: rng.randint(4, 12) * 10**9 for layout in layouts},
        sharding=tuple(rng.randrange(2) for _ in range(trains)),
        reshard_s=rng.choice((0.0, rng.uniform(0.0, 5.0))),
        layout_switch_s=rng.choice((0.0, rng.uniform(0.0, 5.0))),
        objective=rng.choice(("seconds", "usd")),
        within_s=rng.choice((None, slowest)),
        nodes=nodes_of,
        train_nodes=tuple(rng.randint(1, of.nodes) for _ in range(trains)),
        usd_per_node_s=rng.uniform(1e-4, 1e-2),
        pool_nodes=of.nodes,
        workers=tuple(rng.randint(1, 32) for _ in rewards),
        worker_room={layout: 16 * nodes for layout, nodes in nodes_of.items()},
    )
    return Instance(short, long, deferring, limits, target)


def costs(job: Instance) -> Iterator[float]:
    """Yield the cost per trained sample of each schedule that keeps the limits."""
    limits = job.limits
    trains = range(len(job.short[0].step_s))
    for short in job.short:
        partners: list[Column | None] = [None]
        if short.deferral in job.needs_long:
            partners = [c for c in job.long if c.deferral == short.deferral and c.reward == short.reward]
        for long, here in itertools.product(partners, trains):
            for there in trains if long else (here,):
                # Rounds of each kind per trained sample: the queue neither grows nor shrinks.
                ratio = short.moved / long.moved if long else 0.0
                u = 1.0 / (limits.group_size * (short.groups + (ratio * long.groups if long else 0.0)))
                rounds = [(u, short, here)] + ([(u * ratio, long, there)] if long else [])
                seconds = sum(rate * column.step_s[train] for rate, column, train in rounds)
                if long:
                    seconds += 2 * u * ratio * limits.layout_switch_s * (short.layout != long.layout)
                    resharded = limits.sharding[here] != limits.sharding[there]
                    seconds += 2 * u * ratio * limits.reshard_s * resharded
                count = sum(rate for rate, _, _ in rounds)
                if keeps(rounds, limits) and (limits.within_s is None or seconds <= limits.within_s * count):
                    nodes = max(max(limits.nodes[c.layout], limits.train_nodes[m]) for _, c, m in rounds)
                    while not fits(rounds, limits, nodes):
                        nodes += 1
                    yield seconds * (nodes * limits.usd_per_node_s if limits.objective == "usd" else 1.0)


def keeps(rounds: list[tuple[float, Column, int]], limits: Limits) -> bool:
    """Whether a schedule (rate, column and update choice of each kind of round) keeps bias budget, SLO, cores and
    memory."""
    for sign in (1.0, -1.0):
        excess = sum(rate * (sign * c.excess_tokens + CONFIDENCE_Z * c.excess_error) for rate, c, _ in rounds)
        if excess / limits.mean_tokens > limits.bias_budget + TOLERANCE:
            return False
    slow = sum(rate * c.slow[train] for rate, c, train in rounds)
    if limits.slo and slow > (SLOW_SHARE + TOLERANCE) * sum(rate for rate, _, _ in rounds):
        return False
    short = rounds[0][1]
    cores = limits.workers[short.reward] <= limits.worker_room[short.layout]
    return cores and fits(rounds, limits, limits.pool_nodes)


def fits(rounds: list[tuple[float, Column, int]], limits: Limits, nodes: int) -> bool:
    """Whether the host memory of the fullest of so many nodes holds the engines."""
    layouts = {c.layout for _, c, _ in rounds}
    held = sum(limits.host_bytes[k] * math.ceil(k.engines / nodes) / k.engines for k in layouts)
    return held <= limits.host_memory_bytes


def agrees(job: Instance, best: float | None, solution: Solution | None) -> bool:
    """Whether the program's cost is that of exhaustive search, or both have no schedule."""
    if best is None or solution is None:
        return best is None and solution is None
    return math.isclose(solution.objective, best, rel_tol=TOLERANCE, abs_tol=0.0) and solution.optimal


def compare(instances: int, seed: int) -> dict[str, Any]:
    """Solve random instances by the program and by exhaustive search; the JSON result."""
    began = time.perf_counter()
    mismatches = infeasible = schedules = 0
    gap = 0.0
    for number in range(instances):
        job = instance(random.Random(f"{seed}:{number}"))
        kept = list(costs(job))
        best = min(kept, default=None)
        try:
            solution = solve_program(job.short, job.long, job.needs_long, job.limits, job.target)
            gap = max(gap, solution.gap)
        except Infeasible:
            solution = None
        schedules += len(kept)
        infeasible += best is None
        mismatches += not agrees(job, best, solution)
    return {
        "instances": instances,
        "mismatches": mismatches,
        "gap_max": gap,
        "infeasible": infeasible,
        "schedules": schedules,
        "seconds": round(time.perf_counter() - began, 3),
    }


def large(jobs: int, seed: int) -> dict[str, Any]:
    """Solve large random jobs; the JSON result of the certified gap and the CPU seconds of a solve, the worst of each:
    HiGHS has one thread, and other programs on the machine do not count."""
    worst_gap, slowest_s, columns = 0.0, 0.0, 0
    for number in range(jobs):
        job = instance(random.Random(f"large:{seed}:{number}"), LARGE)
        began = time.process_time()
        try:
            solution = solve_program(job.short, job.long, job.needs_long, job.limits, job.target)
            worst_gap = max(worst_gap, solution.gap)
        except Infeasible:
            pass
        slowest_s = max(slowest_s, time.process_time() - began)
        columns = max(columns, len(job.short) + len(job.long))
    return {"jobs": jobs, "columns": columns, "worst_gap": worst_gap, "slowest_s": round(slowest_s, 1)}


def main() -> int:
    """Parse arguments, compare, print. Returns the exit code: 0, or 1 when a choice differs."""
    parser = argparse.ArgumentParser(description="the round program beside exhaustive search")
    parser.add_argument("--instances", type=int, default=60, help="random small jobs (default 60)")
    parser.add_argument("--large", type=int, default=10, help="random large jobs (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the jobs (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    if options.instances < 1:
        parser.error("--instances must be at least 1")
    result = {**compare(options.instances, options.seed), "large": large(options.large, options.seed)}
    tell(
        result,
        options.json,
        f"{result['instances']} jobs, {result['schedules']} schedules that keep the limits, {result['infeasible']} "
        f"jobs without any: {result['mismatches']} mismatches, largest gap {result['gap_max']:g} "
        f"({result['seconds']:.1f} s); {options.large} large jobs: largest gap {result['large']['worst_gap']:g}, "
        f"at most {result['large']['slowest_s']:.1f} s",
    )
    return 1 if result["mismatches"] or result["large"]["worst_gap"] > MOST_GAP else 0


if __name__ == "__main__":
    sys.exit(main())
