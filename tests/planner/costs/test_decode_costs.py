"""Costs read from a profile: a step's curve, engines that are independent, updates in layouts, quadratic prefill."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlplan.planner.costs.decode_costs import DecodeCost, decode_cost
from rlplan.planner.costs.update_costs import TrainCost, train_cost, train_costs
from rlplan.plans.schema.sections.layouts import EngineLayout, UpdateLayout
from rlplan.profiles.phase_schema import Rollout
from rlplan.profiles.profile_schema import Machine, Profile

CURVE = {"curve_sequences": (1, 8, 64), "curve_s": (5e-3, 6e-3, 12e-3)}


def cost(**changes: Any) -> DecodeCost:
    fields: dict[str, Any] = {
        "key": EngineLayout(1, 1), "a": 2e-3, "b": 1e-4, "c": 1e-8, "prefill_s": 1e-3, "prefill_s_per_token": 1e-5,
        "kv_capacity_tokens": 10**5, "max_sequences": 64, "sync_s": 0.1, "host_bytes": 0,
    }  # fmt: skip
    return DecodeCost(**{**fields, **changes})


def test_without_a_curve_a_step_is_the_line_inside_and_outside_what_was_measured() -> None:
    line = cost()
    assert [line.base_s(n) for n in (0, 7, 64, 200)] == pytest.approx([2e-3, 2.7e-3, 8.4e-3, 22e-3])
    assert line.base == ()


def test_a_curve_is_linear_between_its_points_and_goes_on_along_its_last_slope() -> None:
    bent = cost(curve=((1, 5e-3), (8, 6e-3), (64, 12e-3)))
    assert [bent.base_s(n) for n in (1, 8, 36, 64, 120)] == pytest.approx([5e-3, 6e-3, 9e-3, 12e-3, 18e-3])
    assert bent.base == tuple(bent.base_s(n) for n in range(65)) and bent.base_s(0) == 5e-3
    short = cost(curve=((1, 5e-3), (8, 6e-3), (64, 12e-3)), max_sequences=4)
    assert short.base_s(36) == pytest.approx(9e-3)
    assert cost(curve=((1, 5e-3),)).base_s(99) == 5e-3


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 10**5), st.booleans())
def test_many_steps_are_the_sum_of_single_ones(steps: int, sequences: int, kv: int, bent: bool) -> None:
    found = cost(curve=((1, 5e-3), (8, 6e-3), (64, 12e-3))) if bent else cost()
    one_by_one = sum(found.steps_s(1, sequences, kv + k * sequences) for k in range(steps))
    assert found.steps_s(steps, sequences, kv) == pytest.approx(one_by_one)


def test_a_changed_cost_has_its_own_table() -> None:
    assert replace(cost(), a=1.0).base_s(0) == 1.0
    assert replace(cost(), curve=((1, 1.0),)).base == (1.0, 1.0)


def test_prefill_is_quadratic_in_length() -> None:
    found = cost(prefill_s_per_token_squared=1e-9)
    assert found.admit_s(0) == 1e-3
    assert found.admit_s(2000) == pytest.approx(1e-3 + 0.02 + 4e-3)


def test_one_engine_stands_for_many_on_gpus_only(
    make_profile: Callable[..., Profile], make_rollout: Callable[..., Rollout]
) -> None:
    one = make_rollout(1, 1, 7e-3, 3e-5)
    gpu = Machine(accelerator="H100", kind="cuda", accelerators=8, cores=8, host_memory_bytes=10**12)
    profile = make_profile(rollout=(one,), machine=gpu)
    many = decode_cost(profile, one, engines=8)
    assert many.key == EngineLayout(1, 8)
    assert many.host_bytes == 8 * decode_cost(profile, one).host_bytes
    with pytest.raises(ValueError, match="8 engines of tp 1 were not measured, 1 were"):
        decode_cost(make_profile(rollout=(one,)), one, engines=8)
    assert (many.measured_engines, decode_cost(profile, one).measured_engines) == (1, 0)


def test_a_profiles_curve_is_scaled_to_whole_rounds_like_its_line(
    make_profile: Callable[..., Profile], make_rollout: Callable[..., Rollout]
) -> None:
    bent = make_rollout(1, 2, 7e-3, 3e-5).model_copy(update={**CURVE, "points": ()})
    profile = make_profile(rollout=(bent,))
    found = decode_cost(profile, bent)
    assert found.base_s(8) == pytest.approx(profile.checks[0].factor * 6e-3)
    assert found.max_sequences == 64


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ({"curve_sequences": (1, 2), "curve_s": (1.0,)}, "one length"),
        ({"curve_sequences": (2, 4), "curve_s": (1.0, 2.0)}, "start at 1"),
        ({"curve_sequences": (1, 4, 4), "curve_s": (1.0, 2.0, 3.0)}, "ascending"),
        ({"curve_sequences": (1, 4), "curve_s": (2.0, 1.0)}, "never fall"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(
    make_rollout: Callable[..., Rollout], curve: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValidationError, match=says):
        Rollout.model_validate({**make_rollout(1, 2, 7e-3, 3e-5).model_dump(), **curve})


def test_a_profile_is_whole(make_profile: Callable[..., Profile]) -> None:
    whole = make_profile().model_dump()
    for change, says in (
        ({"train": ()}, "no training cost"),
        ({"lengths": None}, "names what it is of"),
        ({"reward": {**whole["reward"], "evidence": {"latency": {"source": "x", "error": 0.1}}}}, "evidence cites x"),
    ):
        with pytest.raises(ValidationError, match=says):
            Profile.model_validate({**whole, **change})


def test_measured_updates_go_before_a_law(make_profile: Callable[..., Profile]) -> None:
    profile = make_profile()
    found = train_costs(profile, 1, (1024, 4096))
    assert [c.layout.micro_batch_tokens for c in found] == [1024, 4096]
    assert found[0] == train_cost(profile.train[0])
    assert train_costs(profile, 2, (1024, 4096)) == ()


def test_padded_samples_cost_by_their_number_too() -> None:
    padded = TrainCost(UpdateLayout(dp=1, micro_batch_tokens=4096), 0.5, 1e-4, 1e-9, per_sample_s=0.01)
    assert padded.update_s(1000, 10**6, 10) == pytest.approx(0.5 + 0.1 + 1e-3 + 0.1)
    assert np.isclose(padded.update_s(1000, 10**6), 0.601)
