"""Profiles that ship: they load, are canonical, say what they are, and obey physics."""

import itertools
import math

import numpy as np
import pytest

from rlplan.planner.costs import LayoutKey, decode_cost, train_cost_in, train_costs
from rlplan.planner.expected_error import MEAN_OVER_DEVIATION, rollout_error
from rlplan.plans.cluster import Pool
from rlplan.plans.errors import InputError
from rlplan.plans.yaml_io import dump
from rlplan.profiles.architecture import architecture_of
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.library import FOLDER, GPU_NAMES, MODEL_NAMES, library_names, library_path, library_profile
from rlplan.profiles.machine import differences, machine_of
from rlplan.profiles.schema import Profile
from rlplan.profiles.train_model import TrainLayout

NAMES = list(itertools.product(GPU_NAMES, MODEL_NAMES))


@pytest.fixture(scope="module")
def shipped() -> dict[tuple[str, str], Profile]:
    return {name: library_profile(*name) for name in library_names()}


def test_every_gpu_and_model_ships_and_nothing_else() -> None:
    assert library_names() == NAMES
    assert {path.name for path in FOLDER.glob("*.yaml")} == {library_path(*name).name for name in NAMES}
    with pytest.raises(InputError, match="no profile of GPT-9 on H100"):
        library_profile("H100", "GPT-9")


def test_files_are_canonical(shipped: dict[tuple[str, str], Profile]) -> None:
    for name, profile in shipped.items():
        assert library_path(*name).read_text(encoding="utf-8") == dump(profile)


def test_every_value_says_its_source_and_error_and_the_file_that_it_is_no_measurement(
    shipped: dict[tuple[str, str], Profile],
) -> None:
    for profile in shipped.values():
        assert profile.provenance == "derived" and "not a measurement of your cluster" in profile.note
        assert profile.lengths is None and not profile.checks
        for entry in profile.rollout:
            assert set(entry.evidence) == {"decode", "prefill", "kv_capacity_tokens", "start", "sync"}
            assert all(e.error >= 0.1 for e in entry.evidence.values())
        assert profile.train_law is not None and profile.train_law.error > 0.05


def test_errors_that_stand_as_evidence_are_deviations_and_those_of_entries_means(
    shipped: dict[tuple[str, str], Profile],
) -> None:
    for profile in shipped.values():
        for entry in profile.rollout:
            mean = entry.evidence["decode"].error * math.sqrt(2 / math.pi)
            assert mean == pytest.approx(entry.error, rel=1e-4)
            stated = rollout_error(profile, LayoutKey(entry.tp, 1))
            assert stated == pytest.approx(entry.error / MEAN_OVER_DEVIATION, rel=1e-4)


def test_accelerators_without_measurements_are_less_sure(shipped: dict[tuple[str, str], Profile]) -> None:
    for model in MODEL_NAMES:
        known = shipped["H100", model].rollout[0].error
        for gpu in ("H800", "H20"):
            assert shipped[gpu, model].rollout[0].error > 1.2 * known
            assert f"no measurement of {gpu}" in shipped[gpu, model].sources["decode"]


def test_steps_grow_with_sequences_and_kv_and_ranks_speed_up_large_batches(
    shipped: dict[tuple[str, str], Profile],
) -> None:
    for profile in shipped.values():
        costs = [decode_cost(profile, entry) for entry in profile.rollout]
        for cost in costs:
            assert (np.diff(cost.base) >= 0).all() and cost.c > 0
            assert cost.max_sequences == len(cost.base) - 1 == 1024
            # The line that stands beside the curve, for readers who want two numbers, is close to it.
            line = cost.a + cost.b * np.array([1, 64, 256])
            assert line == pytest.approx([cost.base_s(n) for n in (1, 64, 256)], rel=0.75)
        large = [cost.steps_s(1, 256, 256 * 2000) for cost in costs]
        assert large == sorted(large, reverse=True)
        capacities = [cost.kv_capacity_tokens for cost in costs]
        assert capacities == sorted(capacities) and capacities[0] >= 16384


def test_no_step_is_faster_than_reading_the_weights(shipped: dict[tuple[str, str], Profile]) -> None:
    for (gpu, model), profile in shipped.items():
        shape = architecture_of(model)
        assert shape is not None
        for entry in profile.rollout:
            cost = decode_cost(profile, entry)
            touched = shape.active_parameters * 2 / GPUS[gpu].memory_bytes_per_s / entry.tp
            assert cost.base_s(1) > touched
            assert cost.c > shape.kv_values_per_token * 2 / GPUS[gpu].memory_bytes_per_s / entry.tp
            weights = shape.parameters * 2 / entry.tp
            kv = entry.kv_capacity_tokens * entry.kv_bytes_per_token / min(entry.tp, shape.kv_heads)
            assert weights + kv < GPUS[gpu].memory_bytes


def test_better_accelerators_are_faster(shipped: dict[tuple[str, str], Profile]) -> None:
    for model in MODEL_NAMES:
        at_four = {
            gpu: decode_cost(p := shipped[gpu, model], next(r for r in p.rollout if r.tp == 4)) for gpu in GPU_NAMES
        }
        steps = [at_four[gpu].steps_s(1, 64, 64 * 8000) for gpu in ("B200", "H200", "H100", "H800")]
        assert steps == sorted(steps)
        assert at_four["H20"].admit_s(8000) > 3 * at_four["H100"].admit_s(8000)
        assert at_four["H20"].admit_s(8000) > 4 * at_four["H20"].admit_s(1000)


def test_an_entry_of_one_engine_serves_any_number_on_gpus(shipped: dict[tuple[str, str], Profile]) -> None:
    profile = shipped["H100", "Qwen2.5-7B"]
    many = decode_cost(profile, profile.rollout[0], 8)
    assert (many.key.engines, many.base_s(64)) == (8, decode_cost(profile, profile.rollout[0]).base_s(64))


def test_updates_are_costed_in_any_layout_that_can_be(shipped: dict[tuple[str, str], Profile]) -> None:
    for (gpu, model), profile in shipped.items():
        law = profile.train_law
        assert law is not None
        for accelerators in (32, 64):
            costs = train_costs(profile, accelerators, (16384,))
            assert costs, f"{model} cannot be trained on {accelerators} {gpu}"
            assert all(c.dp * c.tp * c.cp * c.pp == accelerators for c in costs)
            assert all(0 < c.peak_bytes <= GPUS[gpu].memory_bytes for c in costs)
        flat = train_costs(profile, 64, (16384,), lambda layout: layout.pp == 1 and layout.ep == 1)
        assert {(c.pp, c.ep) for c in flat} == {(1, 1)}
        with pytest.raises(ValueError, match=r"heads|spans nodes"):
            train_cost_in(law, TrainLayout(1, tp=16))


def test_a_derived_profile_is_of_an_accelerator_on_whatever_host(shipped: dict[tuple[str, str], Profile]) -> None:
    pool = {
        "nodes": 2,
        "accelerators": {"kind": "cuda", "name": "H100-SXM", "per_node": 4, "memory_bytes": 80 * 10**9},
        "cores": 64,
        "host_memory_bytes": 10**12,
        "usd_per_node_hour": 10.0,
    }
    here = machine_of(Pool.model_validate(pool))
    assert differences(shipped["H100", "Qwen2.5-7B"], here) == []
    assert differences(shipped["H200", "Qwen2.5-7B"], here) == ["accelerator 'H200' there, 'H100-SXM' here"]
