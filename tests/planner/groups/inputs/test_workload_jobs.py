"""From the workload document to jobs with ways, memory, switches and spreads."""

from statistics import fmean

import pytest

from rlplan.planner.groups.inputs.phase_seconds import PAIRS, from_figures, from_plan, switch_seconds, sync_seconds
from rlplan.planner.groups.inputs.state_memory import rollout_bytes, train_bytes
from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.predicted import PredictedRound
from rlplan.plans.schema.workload import Phase
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import loads

from ....documents import expected_round, spread
from ....plans.conftest import PLAN
from ....workloads import edit, write_workload
from ..made import problem


def test_ways_carry_their_pool_seconds_and_memory(tmp_path):
    found = problem(write_workload(tmp_path))
    small, shape = found.jobs["small"], architecture_of("Qwen2.5-3B")
    reference, half, spill = small.rollout
    assert (reference.pool, reference.nodes, reference.slots, reference.mean_s) == ("roll", 1, 2, 60.0)
    assert reference.state_bytes == rollout_bytes(shape, 8, 1)
    assert (half.slots, half.mean_s, half.state_bytes) == (1, 90.0, rollout_bytes(shape, 4, 1))
    assert (spill.pool, spill.slots, spill.mean_s) == ("train", 1, pytest.approx(66.0))
    assert small.train[0].state_bytes == train_bytes(shape, 8, 1)
    assert found.remaining_s == {"small": 36000.0}
    assert found.node_types["roll"].slots == 2 and found.node_types["roll"].limit == 3
    # Written seconds of training get the transfer over the link.
    weights = 2.0 * architecture_of("Qwen2.5-14B").parameters
    assert found.jobs["big"].train[0].mean_s == pytest.approx(150.0 + weights / (8 * 2e9))


def test_one_host_copy_takes_less_memory(tmp_path):
    path = write_workload(tmp_path)
    before = problem(path).jobs["big"]
    edit(path, "group_cap: 4", "group_cap: 4, host_copies: one")
    after = problem(path).jobs["big"]
    assert after.rollout[0].state_bytes < before.rollout[0].state_bytes / 3
    assert after.train[0].state_bytes < before.train[0].state_bytes


BIG = """\
    model: Qwen2.5-{}
    phases:
      rollout: {{pool: roll, mean_s: 200.0, p50_s: 190.0, p95_s: 260.0}}
      train: {{pool: train, tp: {},"""

FAULTS = {
    "no node holds the state": ("tp: 2, mean_s: 150.0", "tp: 2, mean_s: 150.0, resident_bytes: 1200000000000", 0,
        ["1.2 TB", "write less, or take", "200 GB more", "pool 'train'", "1 TB"]),
    "nothing to derive memory from": ("    model: Qwen2.5-3B\n", "", 1, ["no warm_s", "no model"]),
    "weights beyond an accelerator": ("model: Qwen2.5-14B", "model: Qwen2.5-72B", 2,
        ["phases.rollout", "Qwen2.5-72B's weights", "pool 'roll' has 96 GB", "write tp: 2"]),
    "gradients beyond an accelerator": (BIG.format("14B", 2), BIG.format("32B", 1), 3,
        ["phases.train", "Qwen2.5-32B's weights and gradients", "write tp: 2"]),
    "weights beyond a node": ("model: Qwen2.5-14B", "model: Llama-3.1-405B", 2,
        ["phases.rollout", "Llama-3.1-405B's weights", "at tp 1", "; write nodes: 2 and tp: 16"]),
    "weights beyond the pool": ("model: Qwen2.5-14B", "model: Qwen2.5-7200B", 2,
        ["; the pool's 3 nodes of 8 do not hold it: 158 are needed; take more nodes, accelerators with more"]),
    "jobs of other worlds": ("mean_s: 40.0}", "mean_s: 20000000.0}", -10,
        ["more than 10,000 times the", "of 'big'", "check the units"]),
    "a model of unknown size": ("model: Qwen2.5-3B", "model: my-model", 0, ["size of 'my-model'", "'7B'"]),
    "a source that is not there": ("    model: Qwen2.5-3B", "    source: {plan: none.yaml}", 0,
        ["jobs.small.source.plan: no such file"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_derived_or_held_is_reported_at_its_line(tmp_path, fault):
    path = write_workload(tmp_path)
    old, new, offset, words = FAULTS[fault]
    line = edit(path, old, new) + offset
    if fault == "a source that is not there":
        edit(path, "        mean_s: 60.0\n", "")
        edit(path, "train: {pool: train, mean_s: 40.0}", "train: {pool: train}")
    with pytest.raises(InputError) as caught:
        problem(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.line == line, str(caught.value)


@pytest.mark.parametrize(("p50", "ratio", "train"), [(1.0, 1.01, 900.0), (90.0, 1.7, 3.0), (1000.0, 3.0, 50.0)])
def test_a_spread_has_means_of_one_and_the_given_quantiles(p50, ratio, train):
    got = from_figures(Phase(pool="p", p50_s=p50, p95_s=p50 * ratio), Phase(pool="p", mean_s=train), "job")
    assert got.train_s == pytest.approx(train)
    assert len(got.spread) == PAIRS
    for part in (0, 1):
        assert fmean(pair[part] for pair in got.spread) == pytest.approx(1)
    drawn = sorted(pair[0] * got.rollout_s for pair in got.spread)
    assert fmean(drawn[PAIRS // 2 - 1 : PAIRS // 2 + 1]) == pytest.approx(p50, rel=0.02)
    assert drawn[round(0.95 * PAIRS) - 1] <= p50 * ratio <= drawn[round(0.95 * PAIRS)]


def test_spreads_are_the_jobs_own_and_none_without_quantiles():
    assert from_figures(Phase(pool="p", mean_s=2.0), Phase(pool="p", mean_s=1.0), "job").spread == ()
    phase = Phase(pool="p", p50_s=10.0, p95_s=20.0)
    assert from_figures(phase, phase, "a").spread != from_figures(phase, phase, "b").spread
    assert from_figures(phase, phase, "a") == from_figures(phase, phase, "a")
    scaled = from_figures(phase.model_copy(update={"mean_s": 33.0}), phase, "a")
    assert scaled.rollout_s == pytest.approx(33.0)


def plan_with(**rounds) -> Plan:
    """A plan with these predicted rounds."""
    text = PLAN
    for name in ("CLUSTER", "JOB", "PROFILE", "LENGTHS"):
        text = text.replace(f"{name}_SHA", "a" * 64)
    plan = loads(text.replace("DECISIONS", "a" * 64), Plan)
    kinds = {name: PredictedRound.model_validate(fields) for name, fields in rounds.items()}
    predicted = plan.predicted.model_copy(update={"rounds": plan.predicted.rounds.model_copy(update=kinds)})
    return plan.model_copy(update={"predicted": predicted})


def test_a_plan_gives_its_predicted_step_split_into_phases():
    plan = plan_with()
    got, rounds = from_plan(plan, "job"), plan.predicted.rounds
    assert got.rollout_s + got.train_s == pytest.approx(0.8 * 5.2 + 0.2 * 10.2, rel=0.02)
    long = round(0.2 * PAIRS) / PAIRS
    rollout = (1 - long) * rounds.short.rollout_s.mean + long * rounds.long.rollout_s.mean + 0.1
    assert got.rollout_s == pytest.approx(rollout)


def test_each_kind_of_round_waits_for_rewards_and_trains_by_itself():
    slow = expected_round(share=0.2, rollout_s=100.0, train_s=20.0, sync_s=1.0)
    slow["reward_exposed_s"], slow["step_s"] = spread(30.0), spread(151.0)
    quick = expected_round(share=0.8, rollout_s=10.0, train_s=2.0, sync_s=1.0)
    got = from_plan(plan_with(short=quick, long=slow), "job")
    pairs = [(round(a * got.rollout_s, 6), round(b * got.train_s, 6)) for a, b in got.spread]
    assert set(pairs) == {(10.0, 3.0), (130.0, 21.0)} and pairs.count((130.0, 21.0)) == round(0.2 * PAIRS)


# RollMux, arXiv 2512.11306: warm switches of rollout and training, cold ones, and the measured transfer across pools
# of a node each, with a broadcast inside the node that is left out
@pytest.mark.parametrize(
    ("model", "rollout", "train", "cold", "sync"),
    [
        ("Qwen2.5-3B", 0.8, 1.9, 26.7, None),
        ("Qwen2.5-7B", 0.9, 4.1, 38.8, 0.9),
        ("Qwen2.5-14B", 1.8, 4.7, 60.4, 1.7),
        ("Qwen2.5-32B", 1.7, 5.9, 81.7, 3.9),
    ],
)
def test_published_switches_and_transfers_are_met(tmp_path, model, rollout, train, cold, sync):
    shape = architecture_of(model)
    got = switch_seconds(shape)
    assert (got.rollout_warm_s, got.train_warm_s, got.cold_s) == pytest.approx((rollout, train, cold), rel=0.01)
    write_workload(tmp_path)
    edit(tmp_path / "cluster.yaml", "stream_bytes_per_s: 2000000000.0", "stream_bytes_per_s: 2290000000.0")
    cluster = load_cluster(tmp_path / "cluster.yaml")
    assert sync is None or sync_seconds(shape, cluster, ("roll", 1), ("train", 1)) == pytest.approx(sync, rel=0.1)
    assert sync_seconds(shape, cluster, ("train", 1), ("train", 1)) == 0
    for billions in (0.5, 2, 400):
        beyond = switch_seconds(architecture_of(f"x-{billions}b"))
        assert 0 < beyond.rollout_warm_s < beyond.cold_s and 0 < beyond.train_warm_s < beyond.cold_s
