"""Costs read from a profile: a step's curve, engines that are independent, updates in layouts, quadratic prefill."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rlplan.planner.costs.decode_costs import HELD_TOKENS, DecodeCost, PlannedDrafts, decode_cost
from rlplan.planner.costs.update_costs import train_cost, train_costs
from rlplan.plans.schema.levers import EngineLayout
from rlplan.profiles.draft_schema import geometric
from rlplan.profiles.profile_schema import Machine, Profile

from ..conftest import rollout, small_profile

BENT = ((1, 5e-3), (8, 6e-3), (64, 12e-3))


def cost(**changes: Any) -> DecodeCost:
    fields: dict[str, Any] = {
        "key": EngineLayout(1, 1), "a": 2e-3, "b": 1e-4, "c": 1e-8, "prefill_s": 1e-3, "prefill_s_per_token": 1e-5,
        "kv_capacity_tokens": 10**5, "max_sequences": 64, "sync_s": 0.1, "host_bytes": 0,
    }  # fmt: skip
    return DecodeCost(**{**fields, **changes})


def test_without_a_curve_a_step_takes_what_the_line_says() -> None:
    line = cost()
    assert [line.base_s(n) for n in (0, 7, 64, 200)] == pytest.approx([2e-3, 2.7e-3, 8.4e-3, 22e-3])
    assert line.device == ()


def test_a_curve_is_linear_between_points_and_beyond_the_last() -> None:
    bent = cost(curve=BENT)
    assert [bent.base_s(n) for n in (1, 8, 36, 64, 120)] == pytest.approx([5e-3, 6e-3, 9e-3, 12e-3, 18e-3])
    assert bent.device == tuple(bent.base_s(n) for n in range(65)) and bent.base_s(0) == 5e-3
    assert replace(bent, max_sequences=4).base_s(36) == pytest.approx(9e-3)
    assert cost(curve=BENT[:1]).base_s(99) == 5e-3
    assert replace(bent, curve=((1, 1.0),)).device == (1.0, 1.0), "a changed cost has its own table"


def test_a_step_takes_the_longer_of_device_and_host() -> None:
    both = cost(curve=BENT, host=(1e-3, 50e-6))
    assert [both.base_s(n) for n in (1, 8)] == [5e-3, 6e-3], "the device hides the host"
    many = 1e-3 + 200 * 50e-6 - 200 * HELD_TOKENS * both.c
    assert both.device_s(200) == pytest.approx(12e-3 + 136 * 6e-3 / 56)
    quick = replace(both, curve=((1, 5e-3),))
    assert quick.steps_s(1, 200, 200 * HELD_TOKENS) == pytest.approx(11e-3) and quick.base_s(200) == pytest.approx(many)
    drafting = replace(both, drafts=PlannedDrafts(2, 64, geometric(2, 0.5), geometric(2, 0.5)))
    assert drafting.base_s(200) == pytest.approx(both.device_s(200) + 11e-3), "drafts hide nothing"


@pytest.mark.parametrize("curve", [(), BENT])
@pytest.mark.parametrize(("steps", "sequences", "kv"), [(1, 1, 0), (3, 7, 12), (40, 64, 10**5), (17, 200, 999)])
def test_many_steps_are_the_sum_of_single_ones(curve: tuple, steps: int, sequences: int, kv: int) -> None:
    found = cost(curve=curve)
    one_by_one = sum(found.steps_s(1, sequences, kv + k * sequences) for k in range(steps))
    assert found.steps_s(steps, sequences, kv) == pytest.approx(one_by_one)
    assert found.steps_s(1, sequences, kv) == pytest.approx(found.base_s(sequences) + 1e-8 * kv)


def test_prefill_is_quadratic_in_length() -> None:
    found = cost(prefill_s_per_token_squared=1e-9)
    assert found.admit_s(0) == 1e-3
    assert found.admit_s(2000) == pytest.approx(1e-3 + 0.02 + 4e-3)
    assert found.admit_s(2000, 500) == pytest.approx(found.admit_s(2000) - found.prefix_s(500))
    assert found.prefix_s(500) == pytest.approx(5e-3 + 0.25e-3)


def test_one_engine_stands_for_many_on_gpus_only() -> None:
    one = rollout(1, 1, 7e-3, 3e-5)
    gpu = Machine(accelerator="H100", kind="cuda", accelerators=8, cores=8, host_memory_bytes=10**12)
    profile = small_profile(rollout=(one,), machine=gpu)
    single, many = decode_cost(profile, one), decode_cost(profile, one, engines=8)
    assert many.key == EngineLayout(1, 8) and many.host_bytes == 8 * single.host_bytes
    assert (many.measured_engines, single.measured_engines) == (1, 0)
    with pytest.raises(ValueError, match="8 engines of tp 1 were not measured, 1 were"):
        decode_cost(small_profile(rollout=(one,)), one, engines=8)


def test_a_profiles_curve_is_scaled_to_whole_rounds_like_its_line() -> None:
    curve = {"curve_sequences": (1, 8, 64), "curve_s": (5e-3, 6e-3, 12e-3), "points": ()}
    bent = rollout(1, 2, 7e-3, 3e-5).model_copy(update=curve)
    profile = small_profile(rollout=(bent,))
    found = decode_cost(profile, bent)
    assert found.base_s(8) == pytest.approx(profile.checks[0].factor * 6e-3) and found.max_sequences == 64


ENTRY, WHOLE = rollout(1, 2, 7e-3, 3e-5), small_profile()


def curve(sequences: tuple, seconds: tuple) -> dict[str, Any]:
    return {"rollout": [{**ENTRY.model_dump(), "curve_sequences": sequences, "curve_s": seconds}]}


def twice(of: str) -> dict[str, Any]:
    """Some commands would take the first of them, and others the best or the last."""
    first, *others = WHOLE.model_dump()[of]
    return {of: [first, *others, {**first, "error": 0.5}]}


CITED = {**WHOLE.reward.model_dump(), "evidence": {"latency": {"source": "x", "error": 0.1}}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (curve((1, 2), (1.0,)), "one length"),
        (curve((2, 4), (1.0, 2.0)), "start at 1"),
        (curve((1, 4, 4), (1.0, 2.0, 3.0)), "ascending"),
        (curve((1, 4), (2.0, 1.0)), "never fall"),
        ({"train": ()}, "no training cost"),
        ({"lengths": None}, "names what it is of"),
        ({"reward": CITED}, "evidence cites x"),
        (twice("rollout"), "two entries of rollout are both for tp 1, engines 2"),
        (twice("train"), "two entries of train are both for dp 1, .* micro_batch_tokens 1024"),
        (twice("checks"), "two entries of checks are both for tp 1, engines 2"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Profile.model_validate({**WHOLE.model_dump(), **changes})


def test_measured_updates_go_before_a_law() -> None:
    profile = small_profile()
    found = train_costs(profile, 1, (1024, 4096))
    assert [c.layout.micro_batch_tokens for c in found] == [1024, 4096]
    assert found[0] == train_cost(profile.train[0])
    assert train_costs(profile, 2, (1024, 4096)) == ()
