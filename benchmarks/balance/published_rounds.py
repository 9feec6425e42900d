"""Rounds of published lengths on 64 simulated GPUs: by count, balanced by history, and by an oracle.

The oracle is the same machine, which knows the length of each sample: its samples are prompts of their own, whose
history is exact. No engine finds a prompt in its cache here, since the oracle's samples would share none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlplan.planner.choose.candidates.balance_numbers import balance_of
from rlplan.planner.costs.decode_costs import DecodeCost, layout_cost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.library import library_profile
from rlplan.rounds.balancing.length_estimates import Expected, Recorded
from rlplan.rounds.predict import LengthHistory
from rlplan.rounds.round_spec import RoundKind
from rlplan.tools.published_lengths import read_length_table

GPUS = 64
PROMPTS, SAMPLES = 512, 8
LEAST_PROMPTS = 20
"""Prompts of a population; of fewer it is skipped."""


def populations(path: Path, rounds: int, gpu: str, model: str, seed: int = 0) -> Iterator[dict[str, Any]]:
    """The figures of each source of a file. Raises InputError if the file cannot be read or has none."""
    cost = layout_cost(library_profile(gpu, model), EngineLayout(1, GPUS))
    if cost is None:
        raise InputError(f"the profile of {model} on {gpu} has no engines of TP 1; name a smaller model")
    cost = replace(cost, block_tokens=10**9)
    for source, trace in read_length_table(path).items():
        epochs = sorted({row.epoch for row in trace.rows})
        if min(len(_at(trace, epoch).prompts) for epoch in epochs) >= LEAST_PROMPTS:
            before, now = (fit_lengths(_at(trace, epoch), None, seed) for epoch in (epochs[-2:][0], epochs[-1]))
            figures = _figures(before, now, cost, rounds, seed)
            yield {"trace": path.name, "source": source, "checkpoints": len(epochs), **figures}


def _at(trace: LengthTrace, epoch: int) -> LengthTrace:
    return LengthTrace([row for row in trace.rows if row.epoch == epoch], trace.cap_tokens)


def _figures(before: LengthModel, now: LengthModel, cost: DecodeCost, rounds: int, seed: int) -> dict[str, Any]:
    balanced = replace(cost, balance=balance_of(cost))
    grouped = RoundKind("short", PROMPTS, PROMPTS, SAMPLES, SAMPLES, now.cap_tokens)
    alone = RoundKind("short", PROMPTS * SAMPLES, PROMPTS * SAMPLES, 1, 1, now.cap_tokens)
    seconds: dict[str, list[float]] = {"by_count": [], "balanced": [], "unknown": [], "oracle": []}
    draws = Draws(now, seed, SAMPLES)
    for number in range(rounds):
        numbers = np.arange(number * PROMPTS, (number + 1) * PROMPTS)
        lengths, tokens = draws.firsts(numbers, 0)[:, 0], draws.prompt_tokens_of(numbers)
        recorded = _recorded(before, [now.prompt_ids[k] for k in draws.traced_of(numbers)], seed, number)
        drawn = RoundDraws(lengths, tokens, now.cap_tokens, now.mean_tokens)
        exact = RoundDraws(
            lengths.reshape(-1, 1), np.repeat(tokens, SAMPLES), now.cap_tokens, now.mean_tokens,
            recorded=_exactly(lengths),
        )  # fmt: skip
        for name, kind, given, price in (
            ("by_count", grouped, drawn, cost),
            ("balanced", grouped, replace(drawn, recorded=recorded), balanced),
            ("unknown", grouped, drawn, balanced),
            ("oracle", alone, exact, balanced),
        ):
            times = simulate_one_round(kind, given, price, RewardCost(1, 0.0, 0.0), cost.max_sequences).times
            seconds[name].append(times.decode_end_s)
    means = {name: float(np.mean(each)) for name, each in seconds.items()}
    return {
        "of_oracle": round(means["balanced"] / means["oracle"], 4),
        "of_oracle_in_first_epoch": round(means["unknown"] / means["oracle"], 4),
        "of_oracle_by_count": round(means["by_count"] / means["oracle"], 4),
        "seconds": {name: round(each, 2) for name, each in means.items()},
    }


def _recorded(before: LengthModel, prompts: list[str], seed: int, number: int) -> Recorded:
    """What is recorded of prompts of each of which a group was drawn at the earlier checkpoint.

    Prompts are drawn anew: a trace of few prompts has each of them many times in a round, each time with a history of
    its own.
    """
    rng = np.random.default_rng([seed, 7, number])
    places = {prompt: place for place, prompt in enumerate(before.prompt_ids)}
    known = [place for place, prompt in enumerate(prompts) if prompt in places]
    groups = before.draw_many(np.array([places[prompts[place]] for place in known]), (SAMPLES,), rng)
    history = LengthHistory()
    for place, group in zip(known, groups.tolist(), strict=True):
        history.record(str(place), [int(tokens) for tokens in group])
    return history.recorded(map(str, known))


def _exactly(lengths: NDArray[np.int32]) -> Recorded:
    return Recorded({str(k): Expected(float(t), float(t)) for k, t in enumerate(lengths.ravel())}, spread=0.0)
