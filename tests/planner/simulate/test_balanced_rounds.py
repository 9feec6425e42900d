"""Rounds that are balanced by history, simulated: what they change, and what they leave as it is."""

from dataclasses import replace

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws, SimulatedRound
from rlplan.plans.schema.levers import EngineLayout
from rlplan.rounds.balancing.length_estimates import NOTHING, Expected, Recorded
from rlplan.rounds.round_spec import RoundKind
from tests.rounds.driver import round_balance

CAP = 400
BY_COUNT = DecodeCost(EngineLayout(1, 2), 0.01, 1e-3, 1e-6, 0.001, 1e-5, 20_000, 64, 0, 0)
BALANCED = replace(
    BY_COUNT,
    balance=round_balance(0.01, 1e-3, 1e-6, 20_000),
)


def draws(seed: int, prompts: int, samples: int, redraws: int = 0) -> RoundDraws:
    """Prompts of unlike lengths; with `redraws` each has so many draws."""
    rng = np.random.default_rng(seed)
    middles = np.exp(rng.normal(3.5, 1.0, prompts))
    each = np.repeat(middles, max(1, redraws))
    lengths = np.clip(each[:, None] * np.exp(rng.normal(0, 0.4, (len(each), samples))), 1, CAP).astype(np.int32)
    if redraws:
        lengths[redraws - 1 :: redraws] = CAP  # the last draw of each is long
    recorded = Recorded({str(p): Expected(float(m), float(m)) for p, m in enumerate(middles)}, 0.4)
    offset = np.arange(prompts + 1) * redraws if redraws else None
    tokens = np.full(prompts, 20, dtype=np.int32)
    return RoundDraws(lengths, tokens, CAP, float(lengths.mean()), offset=offset, recorded=recorded)


KINDS = {
    "sync": RoundKind("short", 10, 10, 3, 3, CAP),
    "exact short": RoundKind("short", 10, 5, 3, 3, CAP, cutoff_tokens=60),
    "exact long": RoundKind("long", 10, 10, 3, 3, CAP, cutoff_tokens=60, copies=(2,) * 10, until_long=(True,) * 10),
}


def simulate(of: RoundKind, drawn: RoundDraws, cost: DecodeCost, at_once: int, reference: bool = True):
    observe = (lambda *event: None) if reference else None
    return simulate_one_round(of, drawn, cost, RewardCost(4, 0.01, 0.0), at_once, observe=observe)


def sync(prompts: int) -> RoundKind:
    return RoundKind("short", prompts, prompts, 4, 4, CAP)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("at_once", [2, 7, 20])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("mode", KINDS)
def test_balance_never_changes_which_draws_are_trained(mode: str, known: bool, at_once: int, seed: int) -> None:
    drawn = draws(seed, 10, 3, redraws=8 if mode == "exact long" else 0)
    drawn = drawn if known else replace(drawn, recorded=NOTHING)
    by_count, balanced = (simulate(KINDS[mode], drawn, cost, at_once) for cost in (BY_COUNT, BALANCED))

    def trained(simulated: SimulatedRound) -> list[tuple[int, int]]:
        kept = np.flatnonzero(simulated.kept.any(axis=1))
        return sorted((int(simulated.prompt[draw]), int(simulated.row[draw])) for draw in kept)

    if mode == "exact short":
        assert trained(balanced) == trained(by_count)
        assert balanced.fate[: len(by_count.fate)].tolist() == by_count.fate[: len(balanced.fate)].tolist()
    else:
        assert [prompt for prompt, _ in trained(balanced)] == [prompt for prompt, _ in trained(by_count)]
    if mode == "exact long":  # the first long draw of each prompt, however the draws interleave in time
        for prompt, row in trained(balanced):
            rows = range(8 * prompt, 8 * prompt + 8)
            assert row == next(r for r in rows if drawn.lengths[r].max() > 60)


def test_rounds_that_wait_for_places_end_sooner_by_history() -> None:
    seconds = {"count": 0.0, "history": 0.0, "probes": 0.0}
    for seed in range(6):
        drawn = draws(seed, 40, 4)
        blind = replace(drawn, recorded=NOTHING)
        for name, cost, known in (
            ("count", BY_COUNT, drawn),
            ("history", BALANCED, drawn),
            ("probes", BALANCED, blind),
        ):
            seconds[name] += simulate(sync(40), known, cost, 8).times.decode_end_s
    assert seconds["history"] < 0.9 * seconds["count"]
    assert seconds["history"] < seconds["probes"] < seconds["count"]


def test_the_compiled_simulator_is_never_asked_for_balanced_rounds() -> None:
    drawn = draws(1, 12, 4)
    asked = simulate(sync(12), drawn, BALANCED, 8, reference=False).times
    assert asked == simulate(sync(12), drawn, BALANCED, 8).times
    assert asked.decode_end_s != pytest.approx(simulate(sync(12), drawn, BY_COUNT, 8, False).times.decode_end_s)
