"""`python -m benchmarks.long_rounds`: long rounds by queue beside long rounds by waves, and plain rounds.

Each case is a job of `rlplan init` for mathematics, with the lengths of math-16k and another within-prompt correlation
(ICC of log lengths), solved in mode exact. Of the candidates the best plain schedule, the best by waves and the best by
queue are simulated again by other draws than they were chosen on, with all costs: decoding, rewards, update, transfer.

JSON: size -> correlation -> figures:
    plain_s, waves_s, queue_s   mean step seconds (of P n trained samples)
    length_ratio                trained over unconditioned mean length by queue, both kinds of round, and its error
    longest_wait                most long rounds that a prompt waited for, of those that were followed
"""

from __future__ import annotations

import json
import math
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, cast

import click

from rlplan.planner.choose.candidate_search import Search, is_plain
from rlplan.planner.choose.cycle_cost import Cycle
from rlplan.planner.choose.solve_options import SolveOptions
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.table_lengths import TableTrace
from rlplan.planner.search_inputs import prepare
from rlplan.planner.simulate.columns.round_log import mean, standard_error
from rlplan.profiles.length_tables import shipped_table
from rlplan.profiles.library import library_profile
from rlplan.profiles.scaled_profile import priced_as

from . import entry
from .headlines.solved import JobKind, documents_of

NODES = {"7B": 2, "14B": 4, "32B": 8}
"""Nodes of eight H100s by size of the model."""

CORRELATIONS = (0.2, 0.5, 0.8)
PROMPTS = 20_000
ROUNDS = (320, 160)
"""Short and long rounds that tell seconds and lengths."""


class Case(NamedTuple):
    """A job."""

    size: str
    correlation: float
    prompts: int = PROMPTS


def figures_of(case: Case, rounds: tuple[int, int] = ROUNDS) -> dict[str, Any]:
    """The figures of a case, as of the module's docstring."""
    model = f"Qwen2.5-{case.size}"
    cluster, job, shape = documents_of(JobKind(NODES[case.size], "H100", model, "math-16k", "math"))
    profile = priced_as(library_profile("H100", model), job, None)
    trace = TableTrace(shipped_table("math-16k").model_copy(update={"icc": case.correlation}))
    options = SolveOptions(mode="exact", prompts=case.prompts, model=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = prepare(cluster, job, profile, trace, options)
    search.run_passes(lambda text, share: None)
    cycles = [best_of(search, kind) for kind in ("plain", "waves", "queue")]
    draws = search.setting.draws
    longer = search.anew(cycles, Draws(draws.model, draws.seed + 9_000_011, draws.width))
    again = [longer.simulate(cycle, *rounds) for cycle in cycles]
    size = search.limits.group_size
    plain_s, waves_s, queue_s = (search.setting.target * size * cycle.seconds_per_sample(size) for cycle in again)
    ratio, error = trained_ratio(longer, again[2])
    long = cast(Any, again[2].long).key
    return {
        "plain_s": plain_s,
        "waves_s": waves_s,
        "queue_s": queue_s,
        "length_ratio": ratio,
        "length_ratio_error": error,
        "longest_wait": int(longer.setting.queue_of(long).waits.max()),
        "queue": {"cutoff_tokens": long.deferral.cutoff_tokens, "prompts": long.queue[0], "steps": again[2].name},
    }


def best_of(search: Search, kind: str) -> Cycle:
    """The cheapest schedule of a kind, plain, waves or queue, of those with the most rounds."""

    def kind_of(cycle: Cycle) -> str:
        if cycle.long is None:
            return "plain" if is_plain(cycle) else "sync"
        return "queue" if cycle.long.key.queue else "waves"

    cycles = [c for c in search.cycles() if kind_of(c) == kind and not c.violations(search.limits)]
    most = max(c.short.rounds for c in cycles)
    return min((c for c in cycles if c.short.rounds == most), key=lambda c: (c.cost(search.limits), c.name))


def trained_ratio(search: Search, cycle: Cycle) -> tuple[float, float]:
    """(trained over unconditioned mean length of a schedule's rounds, its standard error)."""
    logs = [search.short[cycle.short.key].log]
    logs += [search.long[cycle.long.key].log] if cycle.long else []
    rates, unit = cycle.rates(search.limits.group_size), search.limits.mean_tokens
    parts = [rate * mean(log.kept) for rate, log in zip(rates, logs, strict=False)]
    errors = [rate * standard_error(log.kept) for rate, log in zip(rates, logs, strict=False)]
    return sum(parts) / unit, math.hypot(*errors) / unit


@click.command()
@click.option("--size", "sizes", multiple=True, type=click.Choice(list(NODES)), help="Default: all.")
@entry.as_json_option
def command(sizes: tuple[str, ...], as_json: bool) -> None:
    """Long rounds by queue and by waves."""
    cases = [Case(size, correlation) for size in sizes or NODES for correlation in CORRELATIONS]
    found: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for case, figures in zip(cases, pool.map(figures_of, cases), strict=True):
            found.setdefault(case.size, {})[f"{case.correlation:g}"] = figures
            click.echo(_text(case, figures), err=as_json)
    if as_json:
        click.echo(json.dumps(found))


def _text(case: Case, figures: dict[str, Any]) -> str:
    plain, waves, queue = (figures[f"{kind}_s"] for kind in ("plain", "waves", "queue"))
    return (
        f"{case.size}, correlation {case.correlation:g}: plain {plain:.1f} s, "
        f"waves {waves:.1f} s ({plain / waves:.2f}x), "
        f"queue {queue:.1f} s ({plain / queue:.2f}x, {waves / queue:.2f}x waves); length ratio "
        f"{figures['length_ratio']:.3f} +- {figures['length_ratio_error']:.3f}; longest wait {figures['longest_wait']}"
    )


if __name__ == "__main__":
    entry.run(command)
