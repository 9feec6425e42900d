"""Writes library/lengths and library/rewards from public measurements.

Quantiles and shares only; no response, no prompt and no id of the sources goes into what ships. Length tables take the
quantiles of one model's responses under one cap. The reward table of kind code combines two sources: right answers take
what a data set's reference solutions take, wrong ones what a training run's executions took.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlplan.plans.schema.base import Name
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.laws.reward_fit import equally_likely
from rlplan.profiles.length_tables import FOLDER as LENGTHS
from rlplan.profiles.length_tables import LengthTable, TableError
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.reward_tables import FOLDER as REWARDS
from rlplan.profiles.reward_tables import RewardError, RewardTable

from .published_lengths import read_length_table

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)

ERROR = TableError(scale=0.4, spread=0.25, icc=0.25)
ERROR_SOURCE = (
    "four reasoning models on the same 52 prompts have medians from 1,964 to 4,647 tokens (log deviation 0.39); two "
    "checkpoints of one RL run have medians of 506 and 363 and p95 over p50 of 4.3 and 2.3; ICC from 0.2 to 0.9"
)

ROLLPACKER = "response-length CDF of Qwen2.5-14B in RollPacker (arXiv 2509.21009), Fig. 2a, read off the vector figure"
PAPER_CAP = 16384
# Share of the responses at the cap, which the figure's axis does not reach.
AT_CAP = {"math": 0.0107, "code": 0.010, "judge": 0.002}
TASKS = {
    "math": "mathematics with a rule-based check (DeepMath-103K)",
    "code": "code with tests in a sandbox (KodCode)",
    "judge": "questions of many subjects that a model judges",
}
WITHIN_ENVIRONMENT = "assumed: nobody published it; within one environment of reasoning-gym it is 0.52 to 0.66"
PAPER_ICC = {
    "math": (0.2, "the one-factor copula with which the paper's step times over prompts and samples come out best"),
    "code": (0.5, WITHIN_ENVIRONMENT),
    "judge": (0.5, WITHIN_ENVIRONMENT),
}


def length_tables(data: Path) -> list[LengthTable]:
    """All of them, from the folder of public measurements."""
    figures = _json(data / "papers" / "rollpacker_figures.json")
    tables = [_of_paper(kind, figures[f"fig2a_{kind}"]) for kind in ("math", "code", "judge")]
    lengths = data / "lengths"
    thinking = read_length_table(lengths / "reasoning_3x.csv.gz")
    puzzles, misguided = "puzzles that invite a long chain of thought", "cpldcpu/MisguidedAttention, CC0-1.0"
    qwq = thinking["QwQ-32b"]
    tables.append(_of_trace("reasoning-32k", puzzles, "QwQ-32B", 32000, [qwq], misguided))
    qwen3 = [trace for source, trace in thinking.items() if source.startswith("qwen3")]
    models = "Qwen3-30B-A3B and Qwen3-235B-A22B, thinking"
    tables.append(_of_trace("reasoning-16k", puzzles, models, 16380, qwen3, misguided))
    aime = list(read_length_table(lengths / "aime_llama3b_rl_50x.csv.gz").values())
    gym = "open-thought/reasoning-gym-eval, Apache-2.0"
    tables.append(
        _of_trace(
            "short-math-2k", "AIME problems, a small model during RL", "Llama-3B-Instruct", 2048, aime, gym,
            "two checkpoints of one run; lengths are counts of another vocabulary, cut here at 2,048",
        )
    )  # fmt: skip
    school = list(read_length_table(lengths / "math100_qwen25math_8x.csv.gz").values())
    source = "QwenLM/Qwen2.5-Math, MIT"
    tables.append(_of_trace("math-2k", "MATH problems", "Qwen2.5-Math", 2109, school, source))
    environments = read_length_table(lengths / "reasoning_gym_3x.csv.gz")["google_gemma-3-27b-it"]
    task = "101 verifiable environments, mixed"
    tables.append(_of_trace("gym-8k", task, "gemma-3-27b-it", 8192, [environments], gym))
    tables.append(_of_production(lengths / "deepseek_r1_production.csv.gz"))
    return tables


def _of_paper(kind: str, points: Sequence[tuple[float, float]]) -> LengthTable:
    """A length table from the points of a CDF in per cent, and the share at the cap."""
    quantiles = []
    for share in SHARES:
        tokens = next((x for x, y in points if y >= 100 * share), None)
        if tokens is not None:
            quantiles.append((tokens, share))
    last = points[-1]
    quantiles += [(last[0], last[1] / 100), (PAPER_CAP, 1 - AT_CAP[kind])]
    icc, icc_source = PAPER_ICC[kind]
    note = f"between {last[0]:g} tokens and the cap only the share at the cap is known; a power law joins them"
    return _table(f"{kind}-16k", TASKS[kind], "Qwen2.5-14B", PAPER_CAP, quantiles, icc, icc_source, ROLLPACKER, note)


def _of_trace(
    name: Name, task: str, model: str, cap_tokens: int, traces: Sequence[LengthTrace], source: str, note: str = ""
) -> LengthTable:
    """A length table from responses; those of at least the cap were cut by it. The ICC is the mean of the traces'."""
    tokens = sorted(min(row.tokens, cap_tokens) for trace in traces for row in trace.rows)
    within = [t for t in tokens if t < cap_tokens]
    quantiles = [(float(_quantile(tokens, share)), share) for share in SHARES if share * len(tokens) <= len(within)]
    # With few responses the outermost quantiles are noise.
    quantiles = [(t, share) for t, share in quantiles if min(share, 1 - share) * len(tokens) >= 2]
    quantiles.append((float(cap_tokens), len(within) / len(tokens)))
    icc = sum(trace.icc() for trace in traces) / len(traces)
    prompts = sum(len(trace.prompts) for trace in traces)
    rows = f"{len(tokens):,} responses to {prompts:,} prompts"
    return _table(
        name, task, model, cap_tokens, quantiles, icc, f"of these responses ({rows})", f"{source}: {rows}", note
    )


def _of_production(path: Path) -> LengthTable:
    """A length table from the weighted marginal of requests."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = sorted(
            (float(row["value"]), float(row["weight_requests"]))
            for row in csv.DictReader(file)
            if row["field"] == "output_tokens"
        )
    total, cap = math.fsum(weight for _, weight in rows), 32768
    quantiles, below, wanted = [], 0.0, list(SHARES)
    for tokens, weight in rows:
        below += weight
        while wanted and below >= wanted[0] * total:
            quantiles.append((tokens, wanted.pop(0)))
    quantiles.append((float(cap), 1.0))
    return _table(
        "chat-32k", "requests of users to a reasoning model in production", "DeepSeek-R1", cap, quantiles, 0.5,
        "assumed: requests are not repeated", "alibaba/ServeGen, Apache-2.0: 1.38 million requests",
        "what users ask, not what RL trains on",
    )  # fmt: skip


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def _table(
    name: Name, task: str, model: str, cap_tokens: int, quantiles: Sequence[tuple[float, float]], icc: float,
    icc_source: str, source: str, note: str,
) -> LengthTable:  # fmt: skip
    rising: list[tuple[int, float]] = []
    for tokens, share in quantiles:
        point = max(1, round(tokens)), round(share, 5)
        if rising and point[0] <= rising[-1][0]:
            rising[-1] = rising[-1][0], max(point[1], rising[-1][1])
        else:
            rising.append(point)
    return LengthTable(
        name=name, task=task, model=model, cap_tokens=cap_tokens, quantiles=tuple(rising), icc=round(icc, 2),
        icc_source=icc_source, error=ERROR, error_source=ERROR_SOURCE, source=source, note=note,
    )  # fmt: skip


HANGS_OF_ALL = 0.05
RIGHT, UNSOLVED = 0.5, 0.2  # assumed: shares of all samples, and of all prompts


def reward_tables(data: Path) -> list[RewardTable]:
    """All of them, from the folder of public measurements."""
    with gzip.open(data / "reward" / "kodcode_exec_time.csv.gz", "rt", encoding="utf-8") as file:
        reference_s = sorted(float(row["exec_s"]) for row in csv.DictReader(file))
    cdf = _json(data / "papers" / "rollpacker_figures.json")["fig7a_exec_cdf"]
    executed_s = [_at_share(cdf, 100 * (1 - HANGS_OF_ALL) * (i + 0.5) / 200) for i in range(200)]
    overhead_s = _quantile(executed_s, 0.5) - _quantile(reference_s, 0.5)
    slots = [seconds + overhead_s for seconds in equally_likely(reference_s)]
    code = RewardTable(
        kind="code",
        right_s=tuple(round(seconds, 3) for seconds in slots),
        wrong_s=tuple(round(seconds, 3) for seconds in equally_likely(executed_s)),
        hanging=round(HANGS_OF_ALL / (1 - RIGHT), 3),
        correct=RIGHT / (1 - UNSOLVED),
        unsolved=UNSOLVED,
        error=RewardError(scale=0.7, hanging=0.7),
        error_source="assumed: a factor of 2, since sandboxes, tests and machines differ by that",
        source="right answers: reference solutions of KodCode (Farrrrland/RollPacker, Apache-2.0), 2,001 prompts, and "
        f"{overhead_s:.2f} s for the sandbox; wrong answers: executions in RollPacker (arXiv 2509.21009), Fig. 7a, of "
        "which 5 % of all hang until the deadline",
        note=f"assumed: {RIGHT:.0%} of the samples are right and {UNSOLVED:.0%} of the prompts unsolved",
    )
    math_ = RewardTable(
        kind="math",
        per_sample_s=MATH_S,
        error=RewardError(scale=0.7),
        error_source="assumed: a factor of 2, since answers and machines differ by that",
        source=MATH_SOURCE,
    )
    function = RewardTable(
        kind="function",
        per_sample_s=FUNCTION_S,
        error=RewardError(scale=1.6),
        error_source="assumed: a factor of 5",
        source="assumed: nothing is known of a function that somebody wrote",
        note="a function that asks a model or runs a program takes seconds; say what yours takes",
    )
    return [code, function, math_]


MATH_S = 0.01
MATH_SOURCE = (
    "measured by the authors of rlplan (not published elsewhere): math-verify 0.9 on 400 generated answers, one core "
    "of an AMD EPYC: median 4 ms, p95 24 ms, mean 10 ms"
)
FUNCTION_S = 0.005


def _at_share(cdf: Sequence[tuple[float, float]], percent: float) -> float:
    """The length at which a CDF reaches a share, on a line between its points."""
    place = next(i for i, (_, share) in enumerate(cdf) if share >= percent)
    if place == 0:
        return cdf[0][0]
    (before, low), (after, high) = cdf[place - 1], cdf[place]
    return before + (after - before) * (percent - low) / (high - low)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file; give the folder of public measurements with --data", str(path)) from None


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0, or 2 with one line when a file is absent or wrong."""
    parser = argparse.ArgumentParser(prog="python -m rlplan.tools.build_tables")
    parser.add_argument("--data", type=Path, required=True, help="folder of public measurements")
    options = parser.parse_args(arguments)
    try:
        for table in length_tables(options.data):
            dump(table, LENGTHS / f"{table.name}.yaml")
        for times in reward_tables(options.data):
            dump(times, REWARDS / f"{times.kind}.yaml")
    except (InputError, OSError) as error:
        print(f"tables: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
