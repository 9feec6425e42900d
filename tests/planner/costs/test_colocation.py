"""Engines and trainers on the same GPUs pay for their turns; on pools of their own, for the way of the weights."""

import dataclasses

import pytest

from rlplan.executor.weight_sync import BUCKET_BYTES
from rlplan.planner.choose import cost_error
from rlplan.planner.costs import colocation, memory_table
from rlplan.planner.costs.colocation import (
    MAP_BYTES_PER_S,
    TurnsTake,
    sleep_and_wake_s,
    staging_s,
    turns_take,
    turns_text,
)
from rlplan.planner.costs.decode_costs import decode_cost, engines_of, layout_cost
from rlplan.planner.costs.job_pools import JobPools, NodesTaken, job_pools
from rlplan.planner.costs.memory_table import Engines, JobMemory, trained_parameters
from rlplan.planner.costs.update_costs import train_cost, train_cost_in
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.levers import EngineLayout
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.laws.sync_law import Networks, transfer_s
from rlplan.profiles.laws.train_layouts import physics_of
from rlplan.profiles.library import library_profile

from ...profiles.public_laws import update_layout
from ..conftest import laptop, small_profile
from ..gpu_run import solved_on_gpus
from .test_memory_table import at, gpu_pool

PROFILE = library_profile("H100", "Qwen2.5-32B")
LINK = GPUS["H100"].host_copy_bytes_per_s
FOUR_OF_8 = EngineLayout(8, 4)


def test_rates_of_sleep_are_near_what_was_measured():
    level_1 = GPUS["A100"].host_copy_bytes_per_s
    assert 1 / 1.6 < 61e9 / level_1 / 2.8 < 1.6 and 1 / 1.6 < 59e9 / level_1 / 5.9 < 1.6
    gib_per_s = MAP_BYTES_PER_S / 2**30
    assert 1 / 1.4 < 32.13 / gib_per_s / 0.12 < 1.4 and 1 / 1.4 < 47.40 / gib_per_s / 0.31 < 1.4


def test_a_weight_transfer_holds_what_engines_take_to_sleep_and_wake():
    for entry in PROFILE.rollout:
        turns_s = sleep_and_wake_s(PROFILE, entry.tp)
        assert turns_s == pytest.approx(2 * 0.9 * 80e9 / MAP_BYTES_PER_S), "all of an engine's share, twice"
        assert decode_cost(PROFILE, entry).sync_s == pytest.approx(entry.sync.p50 + turns_s)
    cpu = small_profile()
    assert sleep_and_wake_s(cpu, 1) == 0.0 and decode_cost(cpu, cpu.rollout[0]).sync_s == cpu.rollout[0].sync.p50
    assert sleep_and_wake_s(PROFILE.model_copy(update={"provenance": "measured"}), 8) == 0.0, "not measured"


def test_turns_that_were_measured_are_charged_as_they_were():
    update = update_layout(64)
    entry = small_profile().train[0].model_copy(update={"moves_s": 0.7, **update.model_dump()})
    rollout = tuple(each.model_copy(update={"sleep_s": 0.25, "wake_s": 0.5}) for each in PROFILE.rollout)
    measured = PROFILE.model_copy(update={"provenance": "measured", "rollout": rollout, "train": (entry,)})
    assert sleep_and_wake_s(measured, 8) == 0.75
    of_eight = next(each for each in measured.rollout if each.tp == 8)
    assert decode_cost(measured, of_eight).sync_s == pytest.approx(of_eight.sync.p50 + 0.75)
    assert train_cost(entry).step_s == pytest.approx(entry.step_s + 0.7)
    texts = [turns_text(measured, [(8, update, TurnsTake(*take))]) for take in ((0.75, 0.7), (0.75, 0.0), (0.0, 0.0))]
    assert texts[0] == (
        "engines sleep and wake in 0.75 s of each step, optimizer states leave the GPUs and come back in 0.7 s"
    )
    because = "KV caches no larger than rounds need save"
    assert texts[1].endswith(f"of each step, optimizer states stay on the GPUs; {because} 0.7 s of each step")
    stays = "engines stay awake and optimizer states stay on the GPUs"
    assert texts[2] == f"{stays}; {because} {0.75 + 0.7:.2g} s of each step"
    unmeasured = measured.model_copy(update={"rollout": PROFILE.rollout})
    assert turns_text(unmeasured, [(8, update, TurnsTake(0.0, 0.0))]) is None


@pytest.mark.parametrize(("ranks", "stays", "stays_offloaded"), [(64, 12, 4), (32, 4, 4), (4, 0, 0)])
def test_states_that_leave_the_gpu_pay_the_host_link(ranks, stays, stays_offloaded):
    """Of 12 bytes of a parameter's states, those that fit into the 1.6 GB that engines leave of a GPU stay."""
    profile = library_profile("H100", "Qwen2.5-7B")
    physics, link, share = physics_of(profile.train_law), 0.47 * 64e9, 7.615617e9 / ranks  # of PCIe 5
    seconds = []
    for offload, on_device, kept in ((False, 12, stays), (True, 4, stays_offloaded)):
        layout = update_layout(ranks, recompute="full", offload=offload)
        cost = train_cost_in(profile, layout)
        assert kept * share <= 0.02001 * physics.gpu.memory_bytes
        moved_s = cost.step_s - physics.update(layout).step_s
        assert moved_s == pytest.approx(2 * (on_device - kept) * share / link, rel=1e-3)
        assert cost.host_link_s == pytest.approx(moved_s + (2 * 8 * share / link if offload else 0.0), rel=1e-3)
        seconds.append(cost.step_s)
    # Moments that do not stay move once there and back, in the step or between steps.
    more_s = 2 * 8 * share / link if stays == 12 else 0.0
    assert seconds[1] - seconds[0] == pytest.approx(more_s, rel=1e-3, abs=1e-9)


def test_seconds_on_the_host_link_have_an_error_of_their_own():
    profile = solved_on_gpus().profile
    cost = train_cost_in(profile, update_layout(8, offload=True))
    law_off_s = cost_error._train_off_s(profile, dataclasses.replace(cost, host_link_s=0.0), cost.step_s)
    assert law_off_s == pytest.approx(cost.step_s * cost_error.update_error(profile, cost))
    only_moves = cost_error._train_off_s(profile, cost, cost.host_link_s)
    assert only_moves == pytest.approx(colocation.LINK_ERROR * cost.host_link_s) and cost.host_link_s > 0


def test_a_plan_on_gpus_says_what_turns_and_checkpoints_take():
    documents = solved_on_gpus()
    planned, predicted, profile = documents.plan.job, documents.plan.predicted, documents.profile
    tp, layout = planned.rounds.short.rollout.tp, planned.rounds.short.train
    (entry,) = [e for e in profile.rollout if e.tp == tp]
    saved_s = sleep_and_wake_s(profile, tp) + colocation.state_moves_s(profile, layout)
    assert predicted.rounds.short.sync_s == pytest.approx(entry.sync.p50), "engines stay awake"
    assert planned.why["colocation"].endswith(f"KV caches no larger than rounds need save {saved_s:.2g} s of each step")
    taken = predicted.checkpoint
    assert taken.bytes == pytest.approx(12 * profile.model_parameters)
    assert taken.rank_bytes == pytest.approx(12 * trained_parameters(profile, layout), rel=1e-4)
    assert taken.stood_s == pytest.approx(staging_s(profile, layout), rel=1e-4)


def test_what_fits_beside_a_cache_by_need_stays_and_costs_no_turns():
    """7B on 8 H100s (TP 1): beside 15.2 GB of weights, vLLM's graphs and activations, and a cache of 1 GB in place of
    all that fits there is room for 11.4 GB of states, and for training."""
    profile = library_profile("H100", "Qwen2.5-7B")
    layout = update_layout(8, recompute="full", micro_batch_tokens=4096)
    entry = next(each for each in profile.rollout if each.tp == 1)
    pool = gpu_pool().pools["main"]
    tokens = 10**9 // entry.kv_bytes_per_token
    moves_s = colocation.state_moves_s(profile, layout)
    full = Engines(entry, entry.layout)
    assert turns_take(profile, pool, full, layout) == (sleep_and_wake_s(profile, 1), moves_s) and moves_s > 0
    assert turns_take(profile, pool, dataclasses.replace(full, kv_tokens=tokens), layout) == (0.0, 0.0)
    memory = JobMemory(profile, JobPools(pool), "bfloat16")
    held = {use.phase: use for use in memory.on_devices(dataclasses.replace(full, kv_tokens=tokens), layout)}
    assert held["train"].fits and held["train"].holds_bytes["kv_cache"] == pytest.approx(1e9, rel=1e-3)
    assert held["rollout"].holds_bytes["trainer_optimizer"] == pytest.approx(8 * 7.615617e9 / 8, rel=1e-3)
    # As much more cache as there is room for, and a little more: the states stay, and engines and training take turns.
    room = 80e9 - held["train"].needed_bytes
    most = tokens + int(room / entry.kv_bytes_per_token)
    assert turns_take(profile, pool, dataclasses.replace(full, kv_tokens=most - 20), layout) == (0.0, 0.0)
    more = dataclasses.replace(full, kv_tokens=most + 20)
    assert turns_take(profile, pool, more, layout) == (sleep_and_wake_s(profile, 1), 0.0)


def test_costs_of_a_round_follow_the_cache_that_its_plan_has():
    profile = library_profile("H100", "Qwen2.5-7B")
    entry = next(each for each in profile.rollout if each.tp == 1)
    pools = JobPools(gpu_pool().pools["main"])
    layout = update_layout(8, recompute="full", micro_batch_tokens=4096)
    cost, update = decode_cost(profile, entry, pools=pools), train_cost_in(profile, layout)
    need = cost.with_kv(10**9 // entry.kv_bytes_per_token)
    assert (
        need.sync_beside(layout) == pytest.approx(entry.sync.p50) and need.kv_capacity_tokens < cost.kv_capacity_tokens
    )
    stays = need.update_beside(update)
    assert stays.step_s == pytest.approx(update.step_s - update.moves_s) and stays.moves_s == 0.0 < update.moves_s
    assert need.update_beside(stays) == stays and cost.with_kv(None).update_beside(update) == update
    assert cost.with_kv(None).sync_beside(layout) == pytest.approx(cost.sync_s)


def test_a_checkpoint_stops_training_while_ranks_copy_their_states():
    share, copy = 32.76e9 / 64, colocation.HOST_COPY_BYTES_PER_S
    assert staging_s(PROFILE, update_layout(64)) == pytest.approx(12 * share / LINK, rel=1e-3)
    # Offloaded moments are in host memory already, and are copied there: the update would change them.
    offloaded_s = staging_s(PROFILE, update_layout(64, offload=True))
    assert offloaded_s == pytest.approx(share * (4 / LINK + 8 / copy), rel=1e-3)
    assert staging_s(small_profile(model_parameters=10**9), update_layout(2)) == pytest.approx(6e9 / copy)
    # Each tensor-parallel rank holds the embedding.
    layout = update_layout(8, tp=8)
    memory = JobMemory(PROFILE, JobPools(gpu_pool().pools["main"]), "bfloat16")
    held = memory.trainers_on_host(layout, 8, "train")["checkpoint_copy"]
    rank_parameters = trained_parameters(PROFILE, layout)
    assert held == pytest.approx(8 * 12 * rank_parameters)
    assert rank_parameters > 1.1 * PROFILE.model_parameters / 64
    assert staging_s(PROFILE, layout) == pytest.approx(12 * rank_parameters / LINK)


# -- pools of their own ------------------------------------------------------------------------------------------------


def two_pools(between: float | None = None, within: float | None = None, nodes: int = 4, cpu: bool = False) -> Cluster:
    """Pools `main` of `nodes` nodes and `learn` of four, of eight H100s each, or of two cores."""
    pool = (laptop(nodes=nodes) if cpu else gpu_pool(nodes)).pools["main"]
    rates = ((["main", "learn"], between), (["main", "main"], within))
    links = [{"pools": pools, "stream_bytes_per_s": rate} for pools, rate in rates if rate is not None]
    pools = {"main": pool, "learn": pool.model_copy(update={"nodes": 4})}
    fields = {name: each.model_dump(mode="json") for name, each in pools.items()}
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "two", "pools": fields, "links": links})


def apart(*rates, **options) -> JobPools:
    return job_pools(two_pools(*rates, **options), "main", "learn")


def test_engines_and_trainers_apart_neither_sleep_nor_move_states():
    layout = update_layout(32)
    for entry in PROFILE.rollout:
        assert sleep_and_wake_s(PROFILE, entry.tp) > 0
        cost = decode_cost(PROFILE, entry, pools=apart())
        assert cost.sync_s == entry.sync_apart.p50 == cost.sync_beside(layout) and cost.turns_s == 0.0
        for pools in (None, job_pools(gpu_pool(8), "main", None)):
            shared = decode_cost(PROFILE, entry, pools=pools)
            assert shared == decode_cost(PROFILE, entry) and shared.travel is None, "without links"
            assert shared.sync_beside(layout) == shared.sync_s
    turns, own = train_cost_in(PROFILE, layout), train_cost_in(PROFILE, layout, apart=True)
    assert turns.step_s - own.step_s == pytest.approx(colocation.state_moves_s(PROFILE, layout))
    assert own.step_s < turns.step_s
    assert turns.with_moves(0.0) == own


def test_each_pool_has_bars_and_nothing_of_a_trainer_leaves_its_gpu():
    kinds = [(engines_of(PROFILE, FOUR_OF_8), update_layout(32))]
    bars = JobMemory(PROFILE, apart(), "bfloat16").table(NodesTaken(4, 4), kinds)
    assert {bar.side for bar in bars} == {"engines", "trainers"}
    for bar in bars:
        held = " ".join(bar.holds_bytes)
        assert ("engine" in held) <= (bar.side == "engines") and ("trainer" in held) <= (bar.side == "trainers")
    turns = JobMemory(PROFILE, JobPools(apart().rollout), "bfloat16").table(NodesTaken(4), kinds)
    assert at(turns, "host", "rollout").holds_bytes["trainer_optimizer"] > 50e9, "beside engines it leaves the GPU"
    assert not any("trainer_optimizer" in bar.holds_bytes for bar in bars if bar.place == "host")
    assert at(bars, "device", "train").needed_bytes == at(turns, "device", "train").needed_bytes


def test_a_node_holds_buckets_of_travelling_weights_and_not_the_model():
    assert memory_table.BUCKET_BYTES == BUCKET_BYTES
    memory = JobMemory(PROFILE, apart(), "bfloat16")
    embedding = 2 * 152064 * 5120  # Qwen2.5-32B: its largest tensor is larger than a bucket
    assert memory.weights_under_way("both") == 3 * embedding
    assert memory.weights_under_way("trainers") == embedding
    unknown = JobMemory(small_profile(), apart(), "float32")
    assert unknown.weights_under_way("both") == 4 * small_profile().model_parameters, "as by a file"


def test_a_transfer_waits_for_a_slow_link_alone():
    entry = next(entry for entry in PROFILE.rollout if entry.tp == 8)

    def seconds(*rates: float) -> float:
        return layout_cost(PROFILE, FOUR_OF_8, apart(*rates)).sync_beside(update_layout(32))

    apart_s = entry.sync_apart.p50
    assert seconds(1e12) == pytest.approx(apart_s) and apart_s > 5 * entry.sync.p50, "no GPU is shared"
    # One copy along the chain of NCCL, from one trainer rank, whatever the numbers of ranks and nodes.
    chain = transfer_s(apart_s, 2 * PROFILE.model_parameters / 1e9, 771)
    assert seconds(1e9) == seconds(1e9, 25e9) == pytest.approx(chain, rel=1e-3) and chain > 3 * apart_s
    assert seconds(1e12, 1e9) == pytest.approx(chain, rel=1e-3), "the nodes of engines pass it on"


ON_HOST = apart(1e9, 25e9, nodes=8, cpu=True)
ON_GPUS = dataclasses.replace(job_pools(gpu_pool(8), "main", None), networks=Networks(within=1e9))


@pytest.mark.parametrize(
    ("pools", "engines", "ranks", "expected_s"),
    [
        (ON_HOST, EngineLayout(1, 2), 8, 64 / 2),  # two engines of one core are on one node
        (ON_HOST, EngineLayout(1, 16), 8, 8 * 64 / 8),  # eight nodes
        (ON_GPUS, FOUR_OF_8, 32, 64),  # trainers on all GPUs of engines send along a chain
        (ON_GPUS, FOUR_OF_8, 8, 3 * 64),  # fewer through host memory
        (ON_GPUS, EngineLayout(2, 4), 8, 0),  # both are on one node
    ],
)
def test_weights_cross_once_to_each_node(pools, engines, ranks, expected_s):
    assert pools.network_s(64e9, engines, update_layout(ranks)) == pytest.approx(expected_s)


def test_a_measured_transfer_is_a_floor_between_two_pools():
    profile, pool = small_profile(), laptop().pools["main"]

    def seconds(pools: JobPools) -> float:
        return decode_cost(profile, profile.rollout[0], pools=pools).sync_beside(update_layout(2))

    assert seconds(JobPools(pool, pool, Networks(1e12))) == pytest.approx(0.15, rel=1e-3)
    slow_s = 4 * profile.model_parameters / 2e6
    assert seconds(JobPools(pool, pool, Networks(1e6))) == pytest.approx(0.15 + slow_s, rel=1e-3)
    assert seconds(JobPools(pool, None, Networks(within=1e3))) == 0.15


def test_nodes_of_both_pools_are_counted_compared_and_paid():
    pools = apart(nodes=3)
    assert pools.whole == NodesTaken(3, 4) and pools.whole.total == 7
    assert NodesTaken(2, 4).within(NodesTaken(2, 4)) and not NodesTaken(3, 1).within(NodesTaken(2, 4))
    assert not NodesTaken(1, 5).within(NodesTaken(2, 4))
    assert pools.usd_per_hour(NodesTaken(2, 3)) == pytest.approx(5 * 0.36)
    single = JobPools(pools.rollout)
    assert single.usd_per_hour(NodesTaken(2)) == pytest.approx(2 * 0.36) and single.whole == NodesTaken(3, 0)
