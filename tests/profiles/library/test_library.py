"""Profiles that ship: they load, are canonical, say what they are, and obey physics."""

import itertools
import math

import numpy as np
import pytest

from rlplan.planner.choose.cost_error import MEAN_OVER_DEVIATION, rollout_error
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.update_costs import train_cost_in, train_costs
from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.library import (
    FOLDER,
    GPU_NAMES,
    MODEL_NAMES,
    PRICES_NAME,
    gpu_price,
    library_names,
    library_path,
    library_profile,
    shipped_model,
)
from rlplan.profiles.library.fitness import differences, machine_of
from rlplan.tools.transfers_and_prices import read_prices

from ..public_laws import update_layout

NAMES = list(itertools.product(GPU_NAMES, MODEL_NAMES))


@pytest.fixture(scope="module")
def shipped():
    return {name: library_profile(*name) for name in library_names()}


def test_every_gpu_and_model_ships_canonically_and_nothing_else(shipped):
    assert list(shipped) == NAMES
    for name, profile in shipped.items():
        assert library_path(*name).read_text(encoding="utf-8") == dump(profile)
    assert {path.name for path in FOLDER.glob("*.yaml")} == {library_path(*name).name for name in NAMES} | {PRICES_NAME}


def test_every_value_says_its_source_and_error(shipped):
    for profile in shipped.values():
        assert profile.provenance == "derived" and "not a measurement of your cluster" in profile.note
        assert profile.lengths is None and not profile.checks
        assert profile.train_law.error > 0.05
        for entry in profile.rollout:
            assert set(entry.evidence) == {"decode", "prefill", "kv_capacity_tokens", "start", "sync"}
            assert all(e.error >= 0.1 for e in entry.evidence.values())
            # Errors that stand as evidence are deviations, and those of entries means.
            mean = entry.evidence["decode"].error * math.sqrt(2 / math.pi)
            assert mean == pytest.approx(entry.error, rel=1e-4)
            stated = rollout_error(profile, EngineLayout(entry.tp, 1))
            assert stated == pytest.approx(entry.error / MEAN_OVER_DEVIATION, rel=1e-4)


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_accelerators_without_measurements_are_less_sure(shipped, model):
    for gpu in ("H800", "H20", "A100"):
        assert shipped[gpu, model].rollout[0].error > 1.2 * shipped["H100", model].rollout[0].error
        assert f"no measurement of {gpu}" in shipped[gpu, model].sources["decode"]


def test_steps_grow_with_load_and_are_no_faster_than_reading(shipped):
    for (gpu, model), profile in shipped.items():
        costs = [decode_cost(profile, entry) for entry in profile.rollout]
        shape, rate = architecture_of(model), GPUS[gpu].memory_bytes_per_s
        for entry, cost in zip(profile.rollout, costs, strict=True):
            assert (np.diff(cost.device) >= 0).all()
            assert cost.max_sequences == len(cost.device) - 1 == 1024
            # The line that stands beside the curve, for readers who want two numbers, is close to it.
            line = cost.a + cost.b * np.array([1, 64, 256])
            assert line == pytest.approx([cost.base_s(n) for n in (1, 64, 256)], rel=0.75)
            assert cost.base_s(1) > shape.active_parameters * 2 / rate / entry.tp
            assert cost.c > shape.kv_values_per_token * 2 / rate / entry.tp
            kv = entry.kv_capacity_tokens * entry.kv_bytes_per_token / min(entry.tp, shape.kv_heads)
            assert shape.parameters * 2 / entry.tp + kv < GPUS[gpu].memory_bytes
        large = [cost.steps_s(1, 256, 256 * 2000) for cost in costs]
        assert large == sorted(large, reverse=True), "ranks speed up large batches"
        capacities = [cost.kv_capacity_tokens for cost in costs]
        assert capacities == sorted(capacities) and capacities[0] >= 16384


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_better_accelerators_are_faster(shipped, model):
    profiles = {gpu: shipped[gpu, model] for gpu in GPU_NAMES}
    four = {gpu: decode_cost(p, next(r for r in p.rollout if r.tp == 4)) for gpu, p in profiles.items()}
    steps = [four[gpu].steps_s(1, 64, 64 * 8000) for gpu in ("B200", "H200", "H100", "H800", "A100")]
    assert steps == sorted(steps)
    assert four["H20"].admit_s(8000) > 3 * four["H100"].admit_s(8000)
    assert four["H20"].admit_s(8000) > 4 * four["H20"].admit_s(1000)


def test_an_entry_of_one_engine_serves_any_number_on_gpus(shipped):
    profile = shipped["H100", "Qwen2.5-7B"]
    many = decode_cost(profile, profile.rollout[0], 8)
    assert (many.key.engines, many.base_s(64)) == (8, decode_cost(profile, profile.rollout[0]).base_s(64))


@pytest.mark.parametrize("names", [[("A100", "Qwen2.5-14B")], pytest.param(NAMES, marks=pytest.mark.search)])
def test_updates_are_costed_in_any_layout_that_can_be(shipped, names):
    for gpu, model in names:
        for accelerators in (32, 64):
            costs = train_costs(shipped[gpu, model], accelerators, (16384,))
            assert costs, f"{model} cannot be trained on {accelerators} {gpu}"
            assert all(c.layout.accelerators == accelerators for c in costs)
            assert all(0 < c.peak_bytes <= GPUS[gpu].memory_bytes for c in costs)
        with pytest.raises(ValueError, match=r"heads|spans nodes"):
            train_cost_in(shipped[gpu, model], update_layout(1, tp=16))


def test_a_derived_profile_is_of_an_accelerator_on_whatever_host(shipped):
    accelerators = {"kind": "cuda", "name": "H100-SXM", "per_node": 4, "memory_bytes": 80 * 10**9}
    sizes = {"nodes": 2, "cores": 64, "host_memory_bytes": 10**12, "usd_per_node_hour": 10.0}
    here = machine_of(Pool.model_validate({"accelerators": accelerators, **sizes}))
    assert differences(shipped["H100", "Qwen2.5-7B"], here) == []
    assert differences(shipped["H200", "Qwen2.5-7B"], here) == ["accelerator 'H200' there, 'H100-SXM' here"]


def test_a_model_is_found_by_its_usual_name_and_by_its_shape(shipped):
    names = {
        "Qwen/Qwen2.5-32B-Instruct": "Qwen2.5-32B",
        "qwen2.5-7b": "Qwen2.5-7B",
        "models/Qwen2.5-Math-7B": "Qwen2.5-7B",
        "Qwen/Qwen2.5-Coder-32B-Instruct": "Qwen2.5-32B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "Qwen2.5-14B",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "Llama-3.1-70B",
        "Qwen/Qwen-7B": None,  # the first Qwen, another shape
        "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B",
        "meta-llama/Meta-Llama-3.1-8B-Instruct": "Llama-3.1-8B",
        "meta-llama/Llama-3.3-70B-Instruct": "Llama-3.1-70B",  # the same shape
        "Qwen/Qwen3-32B": None,
    }
    assert {asked: shipped_model(asked) for asked in names} == names
    assert library_profile("H200", "Qwen/Qwen2.5-32B-Instruct") == shipped["H200", "Qwen2.5-32B"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("Qwen2.5-32", "did you mean Qwen2.5-32B"),
        ("Qwen/Qwen3-32B", "take Qwen2.5-32B, the nearest of its kind, whose costs are scaled to it"),
        ("nothing like it", "there are profiles on H100 of Llama-3.1-70B, Llama-3.1-8B, Qwen2.5-14B"),
    ],
)
def test_a_model_that_does_not_ship_is_answered_with_the_nearest(asked, words):
    with pytest.raises(InputError) as caught:
        library_profile("H100", asked)
    assert words in str(caught.value) and f"no profile of {asked} on H100 ships" in str(caught.value)


def test_every_price_has_a_source_and_lies_between_its_offers():
    for gpu in (*GPU_NAMES, "GH200", "B300"):
        price = gpu_price(gpu)
        assert gpu in GPUS
        assert price.lowest_usd_per_gpu_hour <= price.usd_per_gpu_hour <= price.highest_usd_per_gpu_hour
        assert len(price.source) > 10 and (price.offers > 1) == ("median of" in price.basis)
    assert gpu_price("L40S") is None
    assert gpu_price("H100").usd_per_gpu_hour == 2.545


def test_prices_are_medians_of_the_offers_in_a_file(tmp_path):
    file = tmp_path / "prices.csv"
    head = "gpu,usd_per_gpu_hour,provider,source\n"
    rows = "H100,2.0,A,skypilot-org/skypilot-catalog a.csv\nH100,3.0,B,skypilot-org/skypilot-catalog b.csv\n"
    file.write_text(head + rows + "H100,7.0,C,c.example\nH20,,,NOT FOUND\nunknown,1.0,D,d\n")
    found = read_prices(file).prices
    assert set(found) == {"H100", "H20", "H800"}, "two of them as published"
    assert (found["H100"].usd_per_gpu_hour, found["H100"].offers) == (3.0, 3)
    assert found["H100"].source == "A, B by skypilot-org/skypilot-catalog; C by c.example"
    for text, words in (("gpu,usd\n", "no column"), (head, "no price"), (head + "H100,cheap,A,a\n", "no number")):
        file.write_text(text)
        with pytest.raises(InputError, match=words):
            read_prices(file)


def test_an_a100_decodes_as_rollpackers_artifact_did(shipped):
    """Seconds a token of the longest response of a 7B model on A100s of 40 GB (RollPacker's artifact): 10.4 ms.

    Their memory has 1.555 TB/s, the profile's A100 of 80 GB 2.039; one sequence reads weights and little else.
    """
    profile = shipped["A100", "Qwen2.5-7B"]
    entry = next(r for r in profile.rollout if r.tp == 1)
    step_s = decode_cost(profile, entry).steps_s(1, 1, 2000)
    assert step_s * 2.039 / 1.555 == pytest.approx(10.4e-3, rel=2 * entry.evidence["decode"].error)
