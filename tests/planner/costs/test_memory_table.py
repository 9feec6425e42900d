"""The memory table: who holds how many bytes, on which device or host, in which phase; and what asks it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.choose.candidates.candidate_space import enumerate_space
from rlplan.planner.choose.candidates.engine_layouts import feasible_layouts
from rlplan.planner.choose.candidates.pool_choice import choose_pools
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.choose.candidates.update_layouts import fitting_beside
from rlplan.planner.choose.plan_limits import Limits
from rlplan.planner.costs.decode_costs import engines_of, layout_cost
from rlplan.planner.costs.job_pools import JobPools, NodesTaken
from rlplan.planner.costs.memory_table import PHASES, JobMemory, MemoryUse, engines_on_host, largest
from rlplan.planner.costs.update_costs import train_costs
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.plans.facts.device_shares import PLANNED_SHARE
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.laws.rank_memory import STATE_BYTES
from rlplan.profiles.library import library_names, library_profile

from ...profiles.public_laws import update_layout
from ..conftest import heavy_trace, laptop, rollout, small_job, small_profile

H100 = {"kind": "cuda", "name": "H100", "per_node": 8, "memory_bytes": 80 * 10**9}
SIZES = {"prompts_per_step": 8, "samples_per_prompt": 4, "max_prompt_tokens": 96, "max_response_tokens": 1024}
PROFILE = library_profile("H100", "Qwen2.5-32B")
FOURS = EngineLayout(4, 16)


def gpu_pool(nodes=8, host_memory_bytes=2 * 10**12, memory_bytes=80 * 10**9):
    accelerators = {**H100, "memory_bytes": memory_bytes}
    return laptop(nodes=nodes, accelerators=accelerators, cores=112, host_memory_bytes=host_memory_bytes)


def gpu_job(dtype="bfloat16"):
    return small_job(SIZES, model={"path": "m", "dtype": dtype}, search={"tp": [4], "micro_batch_tokens": [4096]})


def table(model, layout, trainers, nodes=8, **pool):
    profile = library_profile("H100", model)
    memory = JobMemory(profile, JobPools(gpu_pool(nodes, **pool).pools["main"]), "bfloat16")
    return memory.table(NodesTaken(nodes), [(engines_of(profile, layout), trainers)])


def layouts_of(cluster, job, profile):
    chosen = choose_pools(cluster, job, profile)
    return feasible_layouts(chosen, job, JobMemory(profile, chosen.pools, job.model.dtype))


def at(bars, place, phase):
    (found,) = (bar for bar in bars if (bar.place, bar.phase) == (place, phase))
    return found


def test_each_phase_has_bars_of_who_takes_its_turn():
    bars = table("Qwen2.5-32B", FOURS, update_layout(8, tp=8))
    assert {(bar.place, bar.phase) for bar in bars} == {(p, phase) for p in ("device", "host") for phase in PHASES}
    decoding, training = at(bars, "device", "rollout"), at(bars, "device", "train")
    assert {"engine_weights", "kv_cache"} <= set(decoding.holds_bytes)
    assert not {"engine_weights", "kv_cache"} & set(training.holds_bytes), "engines sleep while trainers train"
    assert decoding.needed_bytes + training.needed_bytes > decoding.capacity_bytes
    assert all(bar.fits for bar in bars)
    assert not any("engine_weights" in bar.holds_bytes for bar in bars if bar.place == "host"), "sleep of level 2"


def test_a_bar_is_what_is_kept_and_the_largest_of_its_moments():
    bar = MemoryUse("device", "train", 0, {"a": 5.0}, {"now": {"b": 2.0, "c": 1.0}, "then": {"d": 4.0}}, 9.0)
    assert bar.holds_bytes == {"a": 5.0, "d": 4.0} and bar.needed_bytes == 9.0 and bar.fits
    assert not MemoryUse("device", "train", 0, {"a": 5.0}, {"now": {"b": 4.5}}, 9.0).fits
    assert largest({"a": 1e6, "b_c": 262e9, "d": 2e12, "e": 1e9}) == "d 2 TB, b c 262 GB, e 1 GB"


def test_engines_and_what_stays_beside_them_leave_slack():
    for trainers in (update_layout(16), update_layout(32), update_layout(64)):
        bars = table("Qwen2.5-7B", EngineLayout(1, 8), trainers, 8)
        decoding = at(bars, "device", "rollout")
        assert decoding.holds_bytes["slack"] > 2e9 and decoding.fits
        engine = {"engine_weights", "kv_cache", "engine_activations_and_graphs"}
        assert sum(decoding.holds_bytes[name] for name in engine) == pytest.approx(0.9 * 80e9, rel=1e-6)
    on_cpu = JobMemory(small_profile(), JobPools(laptop().pools["main"]), "float32")
    cpu = on_cpu.engines_alone(engines_of(small_profile(), EngineLayout(1, 2)))
    assert not any("slack" in bar.holds_bytes for bar in cpu), "a laptop's engines have what they are given"


def test_a_trainers_bar_is_the_laws_peak_and_what_sleeps_beside_it():
    costs = train_costs(PROFILE, 64, (16896,))
    assert len(costs) > 10
    memory = JobMemory(PROFILE, JobPools(gpu_pool().pools["main"]), "bfloat16")
    for cost in costs:
        bars = memory.on_devices(engines_of(PROFILE, FOURS), cost.layout)
        bar = at(bars, "device", "train")
        free = bar.holds_bytes["reserve"] + bar.holds_bytes["slack"]
        assert bar.needed_bytes - free == pytest.approx(cost.peak_bytes, rel=1e-6) and bar.fits
        assert free == pytest.approx((1 - PLANNED_SHARE) * 80e9) and bar.holds_bytes["slack"] > 2e9
        assert 0 < bar.holds_bytes["trainer_allocator_fragmentation"] < 0.1 * cost.peak_bytes


def test_offloaded_moments_are_in_host_memory_in_every_phase():
    bars = table("Qwen2.5-32B", EngineLayout(4, 2), update_layout(8, offload=True), 1, host_memory_bytes=200 * 10**9)
    for phase in PHASES:
        bar = at(bars, "host", phase)
        assert bar.holds_bytes["trainer_optimizer"] == pytest.approx(262.1e9, rel=1e-3) and not bar.fits
        assert bar.holds_bytes["checkpoint_copy"] == pytest.approx(393.2e9, rel=1e-3)
        # Page-locked memory of what leaves the device is kept while it is there.
        assert bar.holds_bytes["trainer_parameters"] == pytest.approx(131.1e9, rel=1e-3)
    training = at(bars, "device", "train").holds_bytes
    assert "trainer_optimizer" not in training
    assert training["trainer_parameters"] == pytest.approx(131.1e9 / 8, rel=1e-3)
    assert at(bars, "host", "sync").holds_bytes["weights_under_way"] == 3 * 2 * 152064 * 5120, "of one embedding"
    spread = table("Qwen2.5-32B", FOURS, update_layout(64, offload=True), 8)
    assert at(spread, "host", "train").holds_bytes["trainer_optimizer"] == pytest.approx(262.1e9 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "engines", "trainers", "stay"),
    [
        ("Qwen2.5-7B", EngineLayout(2, 32), update_layout(64), {"trainer_parameters", "trainer_optimizer"}),
        ("Qwen2.5-7B", EngineLayout(2, 32), update_layout(32), {"trainer_parameters"}),
        ("Qwen2.5-72B", FOURS, update_layout(8, tp=8), set()),
    ],
)
def test_states_that_do_not_fit_beside_engines_go_to_the_host(model, engines, trainers, stay):
    bars, states = table(model, engines, trainers), {"trainer_parameters", "trainer_optimizer"}
    assert states & set(at(bars, "device", "rollout").holds_bytes) == stay
    held = at(bars, "host", "rollout").holds_bytes
    assert states & set(held) == states - stay
    if not stay:
        # Each of the eight tensor parallel ranks holds the embedding.
        per_node = STATE_BYTES * (library_profile("H100", model).model_parameters + 7 * 152064 * 8192) / 8
        assert sum(held[state] for state in states) == pytest.approx(per_node)
        assert at(bars, "host", "train").holds_bytes["trainer_optimizer"] == held["trainer_optimizer"]
        assert "trainer_parameters" in at(bars, "device", "sync").holds_bytes


def test_on_a_cpu_the_host_holds_trainers_and_engines_of_both_kinds():
    profile = small_profile()
    kinds = [
        (engines_of(profile, layout), update_layout(1, micro_batch_tokens=1024))
        for layout in (EngineLayout(1, 2), EngineLayout(2, 1))
    ]
    bars = JobMemory(profile, JobPools(laptop().pools["main"]), "float32").table(NodesTaken(1), kinds)
    held = sum(sum(engines_on_host(profile, engines, 1).values()) for engines, _ in kinds)
    for phase in PHASES:
        (one, other) = (bar for bar in bars if (bar.place, bar.phase) == ("host", phase))
        trainer = {"rollout": 24, "train": 28, "sync": 24 + 4}[phase] * profile.model_parameters
        assert one.needed_bytes == other.needed_bytes == pytest.approx(held + trainer)
    assert [bar.phase for bar in bars if bar.place == "device"] == ["rollout", "rollout"]


layouts = st.builds(EngineLayout, st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
trainers = st.builds(
    update_layout,
    st.sampled_from([1, 2, 4, 8, 64]),
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2]),
    offload=st.booleans(),
)


@settings(max_examples=50, deadline=None)
@given(layouts, layouts, trainers, trainers, st.integers(1, 16), st.sampled_from(library_names()), st.booleans())
def test_the_program_adds_up_host_memory_as_the_table_does(short, long, train, long_train, nodes, name, on_cpu):
    profile = library_profile(*name)
    pool = gpu_pool(16).pools["main"]
    if on_cpu:
        entries = tuple({(k.tp, k.engines): rollout(k.tp, k.engines, 7e-3, 3e-5) for k in (short, long)}.values())
        profile, pool = small_profile(rollout=entries), laptop().pools["main"]
    else:
        known = sorted({entry.tp for entry in profile.rollout})
        short, long = (EngineLayout(known[k.tp % len(known)], k.engines) for k in (short, long))
    kinds = [(engines_of(profile, k), t) for k, t in ((short, train), (long, long_train))]
    memory = JobMemory(profile, JobPools(pool), "bfloat16")
    bars = [bar for bar in memory.table(NodesTaken(nodes), kinds) if bar.place == "host"]
    limits = Limits(
        group_size=4,
        mean_tokens=1.0,
        bias_budget=math.inf,
        slo=False,
        host_memory_bytes=pool.host_memory_bytes,
        host_bytes={k: layout_cost(profile, k).host_bytes for k in (short, long)},
        train_host=tuple(memory.trainer_share(t) for t in (train, long_train)),
        pool_nodes=16,
    )
    assert limits.on_node([short, long], [0, 1], nodes) == pytest.approx(max(b.needed_bytes for b in bars), rel=1e-8)
    enough = limits.nodes_for([short, long], [0, 1])
    assert enough == 16 or limits.on_node([short, long], [0, 1], enough) <= limits.host_memory_bytes
    assert enough == 1 or limits.on_node([short, long], [0, 1], enough - 1) > limits.host_memory_bytes


def test_candidates_are_what_memory_holds_and_what_lacks_is_told():
    model = fit_lengths(heavy_trace(), 1024, 0)

    def space(*pool, **changes):
        return enumerate_space(gpu_pool(1, *pool, **changes), gpu_job(), PROFILE, model, SolveOptions(mode="sync"))

    with pytest.raises(Infeasible, match="host memory that a node has") as error:
        space(200 * 10**9)
    assert "trainer optimizer 262" in str(error.value), "who holds most of it"
    found = space(1000 * 10**9)
    assert len(found.train_host) == len(found.train) > 0
    assert all(share.on_node(1) > 393e9 for share in found.train_host), "eight GPUs cannot keep the states"
    small = space(memory_bytes=75 * 10**9)
    assert max(train.peak_bytes for train in small.train) <= PLANNED_SHARE * 75e9, "less than the data sheet says"


def test_engines_whose_weights_or_kv_do_not_fit_are_no_candidates():
    with pytest.raises(Infeasible, match="engine weights 32"):
        layouts_of(gpu_pool(1), gpu_job("float32"), PROFILE)
    # 200,000 tokens of 4,096 bytes: 819 MB an engine
    accelerators = {"kind": "cpu", "name": "cpu", "per_node": 2, "memory_bytes": 600 * 10**6}
    decode, refused = layouts_of(laptop(accelerators=accelerators), small_job(), small_profile())
    assert list(decode) == [EngineLayout(2, 1)] and "one of its accelerators would hold" in refused[0]


def test_an_update_that_fits_beside_no_engines_says_what_it_takes():
    profile = small_profile(model_parameters=10**9)
    (cost, *_) = train_costs(profile, 1, (1024,))

    def fitting(memory_bytes):
        pools = JobPools(laptop(host_memory_bytes=memory_bytes).pools["main"])
        return fitting_beside([cost], [EngineLayout(2, 1)], JobMemory(profile, pools, "float32"))

    with pytest.raises(Infeasible, match="trainer optimizer 8 GB"):
        fitting(20 * 10**9)
    assert fitting(40 * 10**9)[0] == (cost,)
