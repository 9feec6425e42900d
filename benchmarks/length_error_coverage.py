"""Does the error that a plan states for its lengths hold, from few prompts to many?

    python -m benchmarks.length_error_coverage [--tables NAMES] [--prompts COUNTS] [--draws N] [--samples K] [--json]

Of each table that ships, 2,048 prompts are the truth (a Gaussian copula with the table's ICC for its correlation). A
job of 32 prompts x 16 samples on 64 GPUs is solved for them by plain rounds. Then, N times, so many prompts with K
responses each are drawn from them, as a short log would hold them. The plan's seconds by the length model of these are
held against its seconds by that of the truth, and the difference against the error that is stated: for the prompts
(planner/explain/length_error.py) and for both simulations. It is one standard deviation: 0.68 of the differences should
be within it, 0.95 within two.

    {"by_prompts": {"4": {"within": 0.67, "within_two": 0.97, "stated": 0.8, "off": 0.4, "draws": 30}, ...}}

`stated` and `off` are medians, of the error of the prompts and of the relative difference.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings

import numpy as np

from benchmarks.copula_trace import copula_lengths
from benchmarks.speed_documents import CAP, cluster, job, profile
from rlplan.planner.choose.candidate_search import Pass, Search
from rlplan.planner.choose.cycle_cost import Cycle
from rlplan.planner.explain.length_error import length_error
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.plan import Inputs
from rlplan.profiles.length_tables import shipped_table, table_names
from rlplan.profiles.length_trace import LengthTrace

POPULATION, GROUP = 2048, 16
ROUNDS = 60
PROMPTS = "4,10,25,50,100,400,1600"


def price(search: Search, cycle: Cycle, model: LengthModel, seed: int) -> tuple[float, float]:
    """(the schedule's cost by these lengths, its relative standard error)."""
    again = search.anew([cycle], Draws(model, seed, search.setting.draws.width))
    simulated = again.simulate(cycle, ROUNDS, 0)
    cost = simulated.cost(again.limits)
    return cost, simulated.cost_error(again.limits) / cost


def differences(name: str, counts: list[int], draws: int, samples: int) -> dict[int, list[tuple[float, float, float]]]:
    """By number of prompts: (difference, error stated, error of both simulations) of each draw from a table."""
    table = shipped_table(name)
    cap = min(CAP, table.cap_tokens)
    cdf = [(float(tokens), share) for tokens, share in table.quantiles]
    truth = copula_lengths(cdf, table.icc, cap, POPULATION, GROUP)
    documents = job().model_dump(mode="json")
    documents["rollout"] |= {"prompts_per_step": 32, "samples_per_prompt": GROUP, "max_response_tokens": cap}
    documents["search"] = {"tp": [1], "micro_batch_tokens": [32768]}
    digest = {"path": "x", "sha256": "0" * 64}
    inputs = Inputs.model_validate({key: digest for key in ("cluster", "job", "lengths")}
                                   | {"profile": {**digest, "provenance": "measured"}})  # fmt: skip
    options = SolveOptions(mode="sync", passes=(Pass(2, 1, math.inf),))
    found = solve(cluster(), type(job()).model_validate(documents), profile(), truth, inputs, options)
    search, cycle = found.search, found.cycle
    true, true_error = price(search, cycle, search.setting.draws.model, 777)
    groups = list(truth.by_prompt().values())
    results: dict[int, list[tuple[float, float, float]]] = {count: [] for count in counts}
    for count in counts:
        for draw in range(draws):
            chosen = np.random.default_rng([draw, count, 5]).choice(len(groups), count, replace=False)
            model = fit_lengths(LengthTrace([row for p in chosen for row in groups[p][:samples]], cap), cap)
            predicted, error = price(search, cycle, model, 99 + draw)
            stated, _ = length_error(search, cycle, model, draw)
            results[count].append((true / predicted - 1.0, stated, math.hypot(error, true_error)))
    return results


def main(arguments: list[str] | None = None) -> int:
    """Prints what is within the stated errors, by number of prompts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.length_error_coverage", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--tables", default=",".join(table_names()))
    parser.add_argument("--prompts", default=PROMPTS)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    counts = [int(count) for count in given.prompts.split(",")]
    warnings.simplefilter("ignore")  # on few prompts: that is the point
    every = [differences(name, counts, given.draws, given.samples) for name in given.tables.split(",")]
    report = {}
    for count in counts:
        off, stated, simulated = np.array([row for found in every for row in found[count]]).T
        within = np.abs(off) / np.hypot(stated, simulated)
        report[str(count)] = {
            "within": round(float((within <= 1).mean()), 3),
            "within_two": round(float((within <= 2).mean()), 3),
            "stated": round(float(np.median(stated)), 4),
            "off": round(float(np.median(np.abs(off))), 4),
            "draws": len(off),
        }
    if given.json:
        print(json.dumps({"by_prompts": report}))
    else:
        for count, row in report.items():
            print(f"{count:>5} prompts: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
