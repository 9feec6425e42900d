"""Jobs of many kinds, solved; each plan beside plain synchronous rounds on draws that nothing was chosen on."""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import click

from rlplan.planner.choose.candidate_search import Search, is_plain
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.choose.cycle_cost import Cycle
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.table_lengths import named_lengths
from rlplan.planner.solve import Solved, solve
from rlplan.plans.facts.model_shape import ModelShape, shape_of_job
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import InputFile, Inputs, ProfileFile
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.length_tables import table_names
from rlplan.profiles.library import library_profile
from rlplan.profiles.library.scaled_profile import priced_as
from rlplan.profiles.library.skeleton import RewardKind, machines_of, model_path_of, skeleton

SEED = 35
MODELS = ("Qwen2.5-7B", "Llama-3.1-8B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-72B")
GPUS = ("H100", "H100", "H800", "H200", "A100", "H20", "B200")
REWARDS: tuple[RewardKind, ...] = ("math", "code")

ROUNDS = (320, 160)
"""Short and long rounds that say which schedule is faster: twice as many as a choice rests on."""

CLEAR = 0.06
"""Gain from which a mode that gains has to be planned: the most that a tie gives up, and the noise of the rounds."""


class JobKind(NamedTuple):
    """What a job is generated from."""

    nodes: int
    gpu: str
    model: str
    lengths: str
    reward: RewardKind


class Outcome(NamedTuple):
    """A solved job: the planned mode, the predicted speed-up, and seconds of a sample in the longer rounds: of the
    plan, the fastest plain rounds, what the plan is compared with, and the fastest other schedule (None: there is
    none)."""

    mode: str
    speedup: float
    plan_s: float
    plain_s: float
    baseline_s: float
    other_s: float | None


def job_kinds(seed: int = SEED) -> Iterator[JobKind]:
    """Kinds of job without end; each table, model and reward comes as often as any other."""
    rng, tables, number = random.Random(seed), table_names(), 0
    while True:
        yield JobKind(
            rng.randint(1, 16), rng.choice(GPUS), MODELS[number % len(MODELS)], tables[number % len(tables)],
            REWARDS[rng.randrange(len(REWARDS))],
        )  # fmt: skip
        number += 1


def solved_job(kind: JobKind) -> Solved:
    """The job of `rlplan init`, solved with the profile and the lengths that ship. Raises Infeasible."""
    cluster, job, shape = documents_of(kind)
    profile = priced_as(library_profile(kind.gpu, kind.model), job, None)
    trace, lengths = named_lengths(kind.lengths)
    path, sha256 = "none", "0" * 64  # the documents are gone, and nothing reads what the plan says of them
    file = InputFile(path=path, sha256=sha256)
    read = ProfileFile(path=path, sha256=sha256, provenance=profile.provenance)
    inputs = Inputs(cluster=file, job=file, lengths=lengths, profile=read)
    options = SolveOptions(prompts=job.data.prompts, model=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solve(cluster, job, profile, trace, inputs, options)


def documents_of(kind: JobKind) -> tuple[Cluster, Job, ModelShape | None]:
    """The documents of `rlplan init`: cluster, job, and the shape of its model."""
    documents = skeleton(
        machines_of(f"{kind.nodes}x8x{kind.gpu}"), *model_path_of(kind.model, Path(kind.model)), kind.reward
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, text in documents.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        cluster, job_path = load_cluster(Path(folder, "cluster.yaml")), Path(folder, "job.yaml")
        job = load_job(job_path)
        shape = shape_of_job(job, job_path)
    return cluster, job, shape


def outcome_of(kind: JobKind) -> Outcome | str:
    """How a job ends: the plan and what it is compared with, or why there is none."""
    try:
        solved = solved_job(kind)
    except Infeasible as error:
        return str(error)
    search, predicted = solved.search, solved.plan.predicted
    plain, other = _fastest(search, True) or solved.baseline, _fastest(search, False)
    cycles = [solved.cycle, plain, solved.baseline, *([other] if other else [])]
    draws = search.setting.draws
    longer = search.anew(cycles, Draws(draws.model, draws.seed + 9_000_011, draws.width))
    size = search.limits.group_size
    seconds = [longer.simulate(cycle, *ROUNDS).seconds_per_sample(size) for cycle in cycles]
    return Outcome(
        solved.plan.job.bias.mode, predicted.speedup, seconds[0], seconds[1], seconds[2], seconds[3] if other else None
    )


def _fastest(search: Search, plain: bool) -> Cycle | None:
    """The fastest schedule of the search that may be planned: plain, or of the others."""
    limits = search.limits
    may = [
        c for c in search.cycles()
        if is_plain(c) == plain and search.may_choose(c.short.deferral.mode) and not c.violations(limits)
    ]  # fmt: skip
    most = max((c.short.rounds for c in may), default=0)  # few rounds flatter a schedule
    return min((c for c in may if c.short.rounds == most), key=lambda c: (c.cost(limits), c.name), default=None)


def solved_figures(jobs: int = 40) -> dict[str, Any]:
    """The figures of so many jobs that have a plan; progress goes to stderr."""
    outcomes: list[Outcome] = []
    kinds = job_kinds()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        while len(outcomes) < jobs:
            some = [next(kinds) for _ in range(jobs - len(outcomes))]
            for kind, found in zip(some, pool.map(outcome_of, some), strict=True):
                click.echo(f"{len(outcomes) + 1} of {jobs}: {' '.join(map(str, kind))}: {_text(found)}", err=True)
                outcomes += [] if isinstance(found, str) else [found]
    return figures_of(outcomes)


def figures_of(outcomes: list[Outcome]) -> dict[str, Any]:
    """The figures of the package's docstring."""
    best = [o for o in outcomes if o.other_s is None or o.plain_s <= o.other_s]
    others = [o for o in outcomes if o.other_s is not None and (1 + CLEAR) * o.other_s <= o.plain_s]
    return {
        "jobs": len(outcomes),
        "below_plain": sum(o.speedup < 1.0 or o.plan_s > o.baseline_s for o in outcomes),
        "layout_gives_up": max(0.0, *(o.plan_s / o.plain_s - 1 for o in outcomes)),
        "sync_best": len(best),
        "sync_where_best": sum(o.mode == "sync" for o in best),
        "others_best": len(others),
        "others_where_best": sum(o.mode != "sync" for o in others),
    }


def _text(found: Outcome | str) -> str:
    if isinstance(found, str):
        return f"no plan: {found}"
    other = "" if found.other_s is None else f", the fastest other {found.plain_s / found.other_s:.3f}x"
    return (
        f"{found.mode} {found.speedup:.3f}x; in longer rounds {found.baseline_s / found.plan_s:.3f}x, "
        f"{found.plain_s / found.plan_s:.3f}x the fastest plain{other}"
    )
