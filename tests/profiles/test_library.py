"""Profiles that ship: they load, are canonical, say what they are, and obey physics."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.update_costs import train_cost_in, train_costs
from rlplan.planner.explain.cost_error import MEAN_OVER_DEVIATION, rollout_error
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.architecture import architecture_of
from rlplan.profiles.fitness import differences, machine_of
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.library import (
    FOLDER,
    GPU_NAMES,
    MODEL_NAMES,
    library_names,
    library_path,
    library_profile,
    prices,
    shipped_model,
)
from rlplan.profiles.profile_schema import Profile

from .public_laws import update_layout

NAMES = list(itertools.product(GPU_NAMES, MODEL_NAMES))


@pytest.fixture(scope="module")
def shipped() -> dict[tuple[str, str], Profile]:
    return {name: library_profile(*name) for name in library_names()}


def test_every_gpu_and_model_ships_and_nothing_else() -> None:
    assert library_names() == NAMES
    names = {library_path(*name).name for name in NAMES}
    assert {path.name for path in FOLDER.glob("*.yaml")} == names | {prices.PATH.name}
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
            stated = rollout_error(profile, EngineLayout(entry.tp, 1))
            assert stated == pytest.approx(entry.error / MEAN_OVER_DEVIATION, rel=1e-4)


def test_accelerators_without_measurements_are_less_sure(shipped: dict[tuple[str, str], Profile]) -> None:
    for model in MODEL_NAMES:
        known = shipped["H100", model].rollout[0].error
        for gpu in ("H800", "H20", "A100"):
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
        steps = [at_four[gpu].steps_s(1, 64, 64 * 8000) for gpu in ("B200", "H200", "H100", "H800", "A100")]
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
            assert all(c.layout.accelerators == accelerators for c in costs)
            assert all(0 < c.peak_bytes <= GPUS[gpu].memory_bytes for c in costs)
        with pytest.raises(ValueError, match=r"heads|spans nodes"):
            train_cost_in(profile, update_layout(1, tp=16))


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


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", "Qwen2.5-32B"),
        ("qwen2.5-7b", "Qwen2.5-7B"),
        ("models/Qwen2.5-Math-7B", "Qwen2.5-7B"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "Qwen2.5-32B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "Qwen2.5-14B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "Llama-3.1-70B"),
        ("Qwen/Qwen-7B", None),  # the first Qwen, another shape
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B"),  # the same shape
        ("Qwen/Qwen3-32B", None),
    ],
)
def test_a_model_is_found_by_its_usual_name_and_by_its_shape(asked: str, name: str | None) -> None:
    assert shipped_model(asked) == name
    if name is not None:
        assert library_profile("H200", asked) == library_profile("H200", name)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("Qwen2.5-32", "did you mean Qwen2.5-32B"),
        ("Qwen/Qwen3-32B", "did you mean Qwen2.5-32B (32.8B parameters, as about Qwen/Qwen3-32B has)"),
        ("nothing like it", "there are profiles on H100 of Llama-3.1-70B, Llama-3.1-8B, Qwen2.5-14B"),
    ],
)
def test_a_model_that_does_not_ship_is_answered_with_the_nearest_that_do(asked: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        library_profile("H100", asked)
    assert words in str(caught.value) and f"no profile of {asked} on H100 ships" in str(caught.value)


def test_every_price_that_ships_has_a_source_and_lies_between_its_cheapest_and_its_dearest_offer() -> None:
    for gpu in (*GPU_NAMES, "GH200", "B300"):
        price = prices.gpu_price(gpu)
        assert price is not None and gpu in GPUS
        assert price.lowest_usd_per_gpu_hour <= price.usd_per_gpu_hour <= price.highest_usd_per_gpu_hour
        assert len(price.source) > 10 and (price.offers > 1) == ("median of" in price.basis)
    assert prices.gpu_price("L40S") is None
    h100 = prices.gpu_price("H100")
    assert h100 is not None and h100.usd_per_gpu_hour == 2.545


def test_prices_are_medians_of_the_offers_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    head = "gpu,usd_per_gpu_hour,provider,source\n"
    rows = "H100,2.0,A,skypilot-org/skypilot-catalog a.csv\nH100,3.0,B,skypilot-org/skypilot-catalog b.csv\n"
    file.write_text(head + rows + "H100,7.0,C,c.example\nH20,,,NOT FOUND\nunknown,1.0,D,d\n")
    found = prices.read_prices(file).prices
    assert set(found) == {"H100", "H20", "H800"}, "two of them as published"
    assert (found["H100"].usd_per_gpu_hour, found["H100"].offers) == (3.0, 3)
    assert found["H100"].source == "A, B by skypilot-org/skypilot-catalog; C by c.example"
    for text, words in (("gpu,usd\n", "no column"), (head, "no price"), (head + "H100,cheap,A,a\n", "no number")):
        file.write_text(text)
        with pytest.raises(InputError, match=words):
            prices.read_prices(file)


def test_an_a100_decodes_as_the_artifact_of_rollpacker_did_within_two_of_its_stated_deviations() -> None:
    """Seconds a token of the longest response of a 7B model on A100s of 40 GB (RollPacker's artifact): 10.4 ms.

    Their memory has 1.555 TB/s, the profile's A100 of 80 GB 2.039; one sequence reads weights and little else.
    """
    profile = library_profile("A100", "Qwen2.5-7B")
    entry = next(r for r in profile.rollout if r.tp == 1)
    step_s = decode_cost(profile, entry).steps_s(1, 1, 2000)
    assert step_s * 2.039 / 1.555 == pytest.approx(10.4e-3, rel=2 * entry.evidence["decode"].error)
