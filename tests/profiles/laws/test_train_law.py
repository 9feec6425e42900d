"""The training law and its memory: layouts do the same work, pay for what they exchange, and hold what they must."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.facts.device_shares import PLANNED_SHARE
from rlplan.plans.facts.model_names import architecture_of
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.laws.rank_memory import kv_capacity_tokens, rank_parameters, train_memory, vocabulary_parameters
from rlplan.profiles.laws.train_law import FILL, IMBALANCE, TrainPhysics, fits_heads
from rlplan.profiles.laws.train_layouts import fitted_memory, train_layouts

from ..public_laws import neutral, train_law, update_layout


def physics(model="Qwen2.5-7B", gpu="H100"):
    return TrainPhysics(architecture_of(model), GPUS[gpu], neutral())


layouts = st.builds(
    update_layout,
    dp=st.sampled_from([1, 2, 8]),
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    sp=st.sampled_from([1, 4]),
    pp=st.sampled_from([1, 2, 4]),
    micro_batch_tokens=st.sampled_from([4096, 16384]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    offload=st.booleans(),
)


@settings(max_examples=30)
@given(layouts)
def test_no_layout_beats_the_peak_rate_of_its_accelerators(layout):
    found = physics()
    update = found.update(layout)
    operations = 6.0 * found.architecture.active_parameters * 10**6
    assert update.step_s + update.per_token_s * 10**6 > operations / (layout.accelerators * found.gpu.bf16_flops)
    assert min(update.step_s, update.per_token_s, update.per_token_squared_s) > 0


@settings(max_examples=30)
@given(layouts)
def test_recomputation_trades_time_for_memory(layout):
    times, memories = [], []
    for again in ("none", "selective", "full"):
        other = layout.model_copy(update={"recompute": again})
        update = physics().update(other)
        memory = train_memory(architecture_of("Qwen2.5-7B"), other)
        times.append(update.step_s + 1e6 * update.per_token_s + 1e9 * update.per_token_squared_s)
        memories.append(memory.persistent + memory.instants["backward"])
    assert times == sorted(times)
    # A stage of very few layers may need more for the one it computes again than it saves.
    if layout.pp == 1:
        assert memories == sorted(memories, reverse=True)


def test_memory_is_persistent_bytes_and_one_instant_never_their_sum():
    memory = train_memory(architecture_of("Qwen2.5-7B"), update_layout(8))
    assert memory.peak_bytes == round(memory.persistent + max(memory.instants.values()))
    assert memory.peak_bytes < memory.persistent + sum(memory.instants.values())
    # weights, gradients and two moments in float32, over eight ranks
    assert memory.persistent > 16 * architecture_of("Qwen2.5-7B").parameters / 8


def test_a_pipeline_idles():
    found = physics("Qwen2.5-14B")
    flat, deep = (found.update(update_layout(8 // pp, pp=pp)) for pp in (1, 4))
    assert deep.step_s > flat.step_s + 2 * 16384 * found.token_s(update_layout(2, pp=4))


@pytest.mark.parametrize(
    ("model", "layout", "says"),
    [
        ("Qwen2.5-7B", update_layout(1, tp=8), "heads"),
        ("Qwen2.5-14B", update_layout(1, pp=5), "layers"),
        ("Qwen2.5-14B", update_layout(1, ep=2), "experts"),
        ("Qwen3-30B-A3B", update_layout(2, ep=8), "experts"),
        ("Qwen2.5-14B", update_layout(1, cp=3), "micro-batch"),
        ("Qwen2.5-14B", update_layout(1, sp=2, micro_batch_tokens=16385), "micro-batch"),
        ("Qwen2.5-14B", update_layout(1, tp=2, sp=8), "tp x sp 16 does not divide 40 attention and 8 KV heads"),
        ("Qwen2.5-14B", update_layout(1, cp=2, sp=2), "one of them is 1"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_its_reason(model, layout, says):
    assert says in (fits_heads(architecture_of(model), layout) or "")


def test_tensor_ranks_leave_norms_and_logits_whole():
    a = architecture_of("Qwen2.5-32B")
    layouts = update_layout(1), update_layout(1, sp=4), update_layout(1, tp=4)
    whole, sp, tp = (train_memory(a, layout).moments["backward"]["trainer_activations"] for layout in layouts)
    assert sp == pytest.approx(whole / 4) and sp < tp < whole
    logits = [train_memory(a, update_layout(1, tp=tp)).moments["loss"]["trainer_logits"] for tp in (1, 8)]
    assert logits[0] == logits[1]


def test_computing_again_costs_a_pass_and_offloading_the_way_of_the_moments():
    found = physics("Qwen2.5-14B")
    plain = found.update(update_layout(8, recompute="none"))
    again = found.update(update_layout(8))
    assert 1.2 < again.per_token_s / plain.per_token_s < 1.4
    away = found.update(update_layout(8, offload=True))
    moments = 2 * 8 * found.architecture.parameters / 8 / GPUS["H100"].host_copy_bytes_per_s
    assert away.step_s - again.step_s == pytest.approx(moments)
    assert (away.per_token_s, away.per_token_squared_s) == (again.per_token_s, again.per_token_squared_s)


@pytest.mark.parametrize("replicas", [4, *(pytest.param(count, marks=pytest.mark.search) for count in (2, 8, 16, 64))])
def test_replicas_wait_as_long_as_in_simulated_packing(replicas):
    waits = []
    for seed, samples in itertools.product(range(2), (256, 1024)):
        draws = random.Random(seed)
        for median, sigma, cap in ((800, 1.0, 16384), (2500, 0.9, 16384), (6000, 0.7, 16384), (500, 0.8, 4096)):
            lengths = [128 + min(cap, int(draws.lognormvariate(math.log(median), sigma))) for _ in range(samples)]
            costs = [length + length**2 / 76e3 for length in lengths]  # attention of a model of 7B
            loads = packed(lengths, costs, cap + 512, replicas)
            fullest = sum(max(loads[k : k + replicas]) for k in range(0, len(loads), replicas))
            whole = FILL * (cap + 512) * sum(costs) / sum(lengths)
            waits.append((fullest - sum(costs) / replicas) / whole)
    assert 0.5 < sum(waits) / len(waits) / (IMBALANCE * math.log2(replicas)) < 2


def packed(lengths, costs, budget, replicas):
    """Costs of micro-batches, the largest first: each sample goes to the cheapest one that has room for its tokens."""
    count = -(-sum(lengths) // budget)
    while True:
        count += -count % replicas
        loads, tokens = [0.0] * count, [0] * count
        for cost, length in sorted(zip(costs, lengths, strict=True), reverse=True):
            room = [k for k in range(count) if tokens[k] + length <= budget]
            if not room:
                break
            least = min(room, key=loads.__getitem__)
            loads[least] += cost
            tokens[least] += length
        else:
            return sorted(loads, reverse=True)
        count += 1


def test_a_micro_batch_gathers_weights_twice_and_sums_float32_gradients():
    found = physics("Qwen2.5-14B")
    bare = replace(found, factors={**neutral(), "launch": 0.0, "gather": 1.0})
    weights = found.architecture.parameters
    moved_s = weights * (2 + 2 + 4) * (7 / 8) / (GPUS["H100"].link_bytes_per_s / 2)
    for recompute in ("none", "full"):
        assert bare.micro_batch_s(update_layout(8, recompute=recompute)) == pytest.approx(moved_s)
    assert bare.micro_batch_s(update_layout(1)) == 0.0
    one, many = (replace(found, factors={**neutral(), "gather": g}).step_s(update_layout(8)) for g in (0.0, 1.0))
    assert one == many, "gradients are summed in each micro-batch, not once more in a step"


def test_copies_of_the_states_gather_within_a_node_and_are_summed_once():
    factors = {**neutral(), "launch": 0.0, "gather": 1.0, "step": 0.0}
    found = replace(physics("Qwen2.5-14B"), factors=factors, fabric_bytes_per_s=12e9)
    whole, hybrid = (update_layout(16, state_copies=copies) for copies in (1, 2))
    weights = found.architecture.parameters
    # Over all: 8 bytes of a weight, 15/16 of them from others, by the 8 ports of a node; over a node: 7/8, by NVLink.
    assert found.micro_batch_s(whole) == pytest.approx(weights * 8 * (15 / 16) / (8 * 12e9))
    assert found.micro_batch_s(hybrid) == pytest.approx(weights * 8 * (7 / 8) / 450e9)
    # A step's optimizer reads and writes 28 bytes of a parameter. Gradients of a shard cross the network twice, but for
    # the half that is a copy's own, by the one port of the GPU.
    assert found.step_s(whole) == pytest.approx(weights / 16 * 28 / 3.35e12)
    assert found.step_s(hybrid) == pytest.approx(weights / 8 * (28 / 3.35e12 + 2 * 4 * (1 / 2) / 12e9))
    assert found.token_s(whole) == found.token_s(hybrid) and found.pair_s(whole) == found.pair_s(hybrid)
    # Copies on one node, of 4 GPUs each, and of 12 GPUs that no node of 8 has.
    assert found.step_s(update_layout(8, state_copies=2)) == pytest.approx(
        weights / 4 * (28 / 3.35e12 + 2 * 4 * (1 / 2) / 450e9)
    )
    assert found.micro_batch_s(update_layout(24, state_copies=2)) > 2 * found.micro_batch_s(hybrid)


def test_sharding_over_many_nodes_costs_little_as_published():
    """16,384 tokens of Llama 3.1 8B take 0.08 s more on 128 H100s than on 8 (torchtitan, 2024-12)."""
    found = physics("Llama-3.1-8B")
    one, many = (found.micro_batch_s(update_layout(count, recompute="selective")) for count in (8, 128))
    assert 0 < many - one < 0.08


def test_a_rank_holds_the_share_of_a_copy():
    a = architecture_of("Qwen2.5-14B")
    hybrid, node = update_layout(16, state_copies=2), update_layout(8)
    assert (hybrid.shard_ranks, hybrid.accelerators) == (8, 16)
    assert rank_parameters(a, hybrid) == pytest.approx(a.parameters / 8)
    assert train_memory(a, hybrid) == train_memory(a, node)
    held = train_memory(a, hybrid).kept
    states = ("trainer_parameters", "trainer_optimizer", "trainer_gradients")
    assert [held[name] for name in states] == pytest.approx([a.parameters / 8 * size for size in (4, 8, 4)])


def test_states_are_sharded_over_all_ranks_or_over_nodes():
    law = train_law("Qwen2.5-7B")
    found = list(train_layouts(law, 32, (16384,)))
    assert {layout.state_copies for layout in found} == {1, 4}
    assert {layout.shard_ranks * layout.tp for layout in found if layout.state_copies > 1} == {8}
    assert {layout.pp for layout in found if layout.state_copies > 1} == {1} < {layout.pp for layout in found}
    for count in (8, 20):
        assert {layout.state_copies for layout in train_layouts(law, count, (16384,))} == {1}
    large = list(train_layouts(train_law("Qwen2.5-72B"), 64, (16384,)))
    assert large and {layout.state_copies for layout in large} == {1}, "a node cannot hold the states"


@pytest.mark.parametrize(("tied", "embedding", "head"), [(True, 0.5, 0.0), (False, 1.0, 0.5)])
def test_tensor_ranks_copy_only_an_untied_embedding(tied, embedding, head):
    a = replace(architecture_of("Qwen2.5-7B"), tied=tied)
    matrix = a.vocab * a.hidden
    assert vocabulary_parameters(a, update_layout(4, tp=2)) == pytest.approx((embedding + head) * matrix)
    whole, divided = (rank_parameters(a, update_layout(1, tp=tp)) for tp in (1, 2))
    assert divided == pytest.approx(whole / 2 + (0 if tied else matrix / 2))
    gathered = train_memory(a, update_layout(4, tp=2)).moments["embedding"]["trainer_gathered_weights"]
    assert gathered == pytest.approx(2 * (0.5 + (0 if tied else 1.0)) * matrix)


def test_layouts_come_in_each_way_to_save_memory_that_fits():
    law = train_law("Qwen2.5-32B")
    found = list(train_layouts(law, 16, (16384, 8192)))
    assert found and len(set(found)) == len(found)
    limit = PLANNED_SHARE * GPUS["H100"].memory_bytes
    for layout in found:
        assert layout.accelerators == 16
        for recompute, offload in itertools.product(("none", "selective", "full"), (False, True)):
            other = layout.model_copy(update={"recompute": recompute, "offload": offload})
            assert (other in found) is (fitted_memory(law, other).peak_bytes <= limit)
    assert len({(layout.recompute, layout.offload) for layout in found}) > 3
    assert not list(train_layouts(law, 1, (16384,)))
    assert {layout.pp for layout in train_layouts(law, 16, (16384,), pp=(1,))} == {1}


def test_an_engine_whose_weights_fill_it_holds_no_kv():
    assert kv_capacity_tokens(architecture_of("Qwen2.5-32B"), GPUS["H100"], 1) < 40_000
    assert kv_capacity_tokens(architecture_of("Qwen2.5-72B"), GPUS["H100"], 1) == 0
    two, four = (kv_capacity_tokens(architecture_of("Qwen2.5-32B"), GPUS["H100"], tp) for tp in (2, 4))
    assert four > 2 * two
