"""A simulated run as numbers, on steps made by hand."""

import pytest

from rlplan.planner.costs.job_pools import JobPools, NodesTaken
from rlplan.planner.simulate.run_summary import BusyMeter, summarize
from rlplan.planner.simulate.whole_run import SimulatedRun, SimulatedStep

from ..conftest import laptop
from ..synthetic_run import solved


def step(kind="short", **changes):
    fields = {"rollout_s": 6.0, "reward_exposed_s": 1.0, "train_s": 2.0, "sync_s": 1.0, "groups": 2, "samples": 10}
    counts = {"tokens": 150, "response_tokens": 100, "decoded_tokens": 160, "excess_tokens": 0.0}
    return SimulatedStep(kind, **{**fields, **counts, "deferred": 0, **changes})


RUN = (
    (step(), step("long", rollout_s=16.0, response_tokens=400, decoded_tokens=400), step()),
    (step("long", samples=5, taken=1, excess_tokens=50.0),),
)
"""Steps, and the one that settles what they owe."""


def summary(steps=RUN[0], settling=RUN[1], busy_s=(9.0, 20.0, 9.0, 5.0), in_use=1, **pool):
    meter = BusyMeter()
    meter.busy_s = list(busy_s)
    run = SimulatedRun(steps, settling, 2, 10.0)
    pools = JobPools(laptop(**pool).pools["main"])
    return summarize(run, meter, solved(mode="sync").plan, pools, NodesTaken(in_use))


@pytest.fixture(scope="module")
def cpu():
    return summary()


def test_the_bubble_is_what_neither_decodes_nor_trains(cpu):
    # On CPUs an update takes both cores: 2 x 2 s of 2 x 10 s, beside 9 s of decoding.
    assert cpu["short"]["bubble"] == pytest.approx(1 - (9 + 4) / 20)
    assert cpu["long"]["bubble"] == pytest.approx(1 - (20 + 4) / 40)
    assert cpu["all"]["bubble"] == pytest.approx(1 - (38 + 12) / 80)
    # Of four GPUs one trains.
    accelerators = {"kind": "cuda", "name": "H100", "per_node": 4, "memory_bytes": 80 * 10**9}
    gpus = summary((step(),), (), [9.0], accelerators=accelerators, cores=8)
    assert gpus["all"]["bubble"] == pytest.approx(1 - (9 + 2) / 40)


def test_phases_and_tokens_are_of_their_kind_of_round(cpu):
    assert cpu["long"]["phases_s"]["rollout"] == {"p50": 16.0, "p95": 16.0, "mean": 16.0}
    assert cpu["all"]["phases_s"]["rollout"]["mean"] == pytest.approx(28 / 3)
    assert cpu["all"]["step_s"] == {"p50": 10.0, "p95": 20.0, "mean": pytest.approx(40 / 3)}
    assert (cpu["short"]["share"], cpu["long"]["share"]) == pytest.approx((2 / 3, 1 / 3))
    assert cpu["all"]["tokens"] == {"decoded": 720, "trained": 600, "wasted": 120}
    assert cpu["long"]["tokens"]["wasted"] == 0


def test_what_is_owed_is_charged_per_sample(cpu):
    # 40 s, and half of the 10 s of a round that settles one prompt where two are a step's, over 35 samples.
    assert cpu["seconds_per_sample"] == pytest.approx(45 / 35)
    assert cpu["accelerator_s_per_1k_samples"] == pytest.approx(2000 * 45 / 35)
    assert cpu["usd_per_1k_samples"] == pytest.approx(1000 * 45 / 35 * 0.36 / 3600)
    assert cpu["length_ratio"] == pytest.approx(1 + 50 / 35 / 10)
    assert cpu["settling_steps"] == 1 and cpu["waits"] is None
    waited = step("long", waits=(3, 1), ages=(2, 0, 0))
    found = summary((step(), waited), (), [9.0, 20.0])["waits"]
    assert found == {"prompts": 2, "mean": 2.0, "longest": 3, "long_rounds": 1, "by_queue": 1}


def test_money_and_accelerators_are_of_the_nodes_in_use(cpu):
    part, whole = summary(nodes=4), summary(nodes=4, in_use=4)
    assert part == cpu, "of a pool of four nodes a plan that takes one is priced as on a pool of one"
    for figure in ("usd_per_1k_samples", "accelerator_s_per_1k_samples"):
        assert whole[figure] == pytest.approx(4 * part[figure])
    assert part["all"]["bubble"] < whole["all"]["bubble"] < 1
