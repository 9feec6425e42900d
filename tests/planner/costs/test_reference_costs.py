"""The reference of a job's KL: its bytes on a device or a host, its forward pass, and which place a plan gives it."""

import pytest

from rlplan.planner.choose.candidates.candidate_space import enumerate_space
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.costs.decode_costs import engines_of
from rlplan.planner.costs.job_pools import JobPools, NodesTaken
from rlplan.planner.costs.memory_table import JobMemory, reference_bytes
from rlplan.planner.costs.update_costs import train_cost, train_cost_in, with_reference
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.plans.schema.levers import EngineLayout, UpdateLayout
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.library import library_profile

from ..conftest import heavy_trace, laptop, small_job, small_profile

H100 = {"kind": "cuda", "name": "H100", "per_node": 8, "memory_bytes": 80 * 10**9}
SIZES = {"prompts_per_step": 8, "samples_per_prompt": 4, "max_prompt_tokens": 96, "max_response_tokens": 1024}
PROFILE = library_profile("H100", "Qwen2.5-32B")
LAYOUT = UpdateLayout(dp=16, micro_batch_tokens=4096)


def at(place, layout=LAYOUT):
    return layout.model_copy(update={"reference": place})


APART = {"placement": {"train_pool": "train"}}


def space(where="auto", nodes=2, **changes):
    cluster = laptop(nodes=nodes, accelerators=H100, cores=112, host_memory_bytes=2 * 10**12)
    if "placement" in changes:
        pool = cluster.pools["main"]
        cluster = cluster.model_copy(update={"pools": {"main": pool, "train": pool}})
    kl = {"coefficient": 0.01, "placement": where} if where else None
    job = small_job(SIZES, model={"path": "m", "dtype": "bfloat16"}, search={"tp": [4], "micro_batch_tokens": [4096]},
                    algorithm={"name": "grpo", "learning_rate": 1e-6, "kl": kl}, **changes)  # fmt: skip
    model = fit_lengths(heavy_trace(), 1024, 0)
    return enumerate_space(cluster, job, PROFILE, model, SolveOptions(mode="sync"))


def test_a_law_prices_the_pass_and_the_copy_of_a_reference():
    plain, device, host = (train_cost_in(PROFILE, at(place)) for place in ("none", "device", "host"))
    assert 0.2 < device.per_token_s / plain.per_token_s - 1 < 0.45, "about a third of forward and backward"
    assert device.per_token_s == host.per_token_s and device.per_token_squared_s == host.per_token_squared_s
    share = reference_bytes(PROFILE, at("host"))
    assert share == pytest.approx(2 * 32.8e9 / 16, rel=0.05)
    assert host.step_s - device.step_s == pytest.approx(host.reference_moved_s)
    assert 0.02 < host.reference_moved_s < 0.5
    assert host.peak_bytes - plain.peak_bytes >= 0 and device.peak_bytes - plain.peak_bytes == pytest.approx(
        share * PROFILE.train_law.memory_factors["rest"], rel=0.01
    )


def test_a_measured_update_gives_a_forward_its_share():
    profile = small_profile()
    entry = profile.train[0]
    plain = train_cost(entry)
    for recompute, token, pair in (("none", 3, 3.5), ("full", 4, 4.5)):
        measured = entry.model_copy(update={"recompute": recompute})
        cost = with_reference(profile.model_copy(update={"train": (measured,)}), train_cost(measured), "device")
        assert cost.per_token_s == pytest.approx(plain.per_token_s * (1 + 1 / token))
        assert cost.per_token_squared_s == pytest.approx(plain.per_token_squared_s * (1 + 1 / pair))
        assert cost.layout.reference == "device" and cost.step_s == plain.step_s


def test_the_table_has_a_reference_where_it_is_in_all_phases():
    cluster = laptop(nodes=2, accelerators=H100, cores=112, host_memory_bytes=2 * 10**12)
    memory = JobMemory(PROFILE, JobPools(cluster.pools["main"], cluster.pools["main"]), "bfloat16")
    engines = engines_of(PROFILE, EngineLayout(4, 2))
    for place in ("device", "host"):
        uses = memory.table(NodesTaken(2, 2), [(engines, at(place))])
        held = {(u.place, u.phase): u.kept.get("trainer_reference", 0.0) for u in uses if u.side == "trainers"}
        for phase in ("train", "sync"):
            assert (held["device", phase] > 0) == (place == "device")
            assert (held["host", phase] > 0) == (place == "host")


def test_a_reference_goes_to_the_device_where_it_has_room():
    shared = space()
    assert {cost.layout.reference for cost in shared.train} == {"host"} and "no room" in shared.reference
    assert {cost.layout.reference for cost in space(**APART).train} == {"host"}, "activations take all of it"
    apart = space(nodes=8, **APART)
    assert {cost.layout.reference for cost in apart.train} == {"device"}
    assert "has room for" in apart.reference
    asked = space("host", **APART)
    assert {cost.layout.reference for cost in asked.train} == {"host"} and "asks" in asked.reference
    assert space(None).reference == "" and {cost.layout.reference for cost in space(None).train} == {"none"}


def test_what_does_not_fit_for_the_reference_alone_names_it():
    with pytest.raises(
        Infeasible, match=r"without the reference of algorithm\.kl, .* of each rank, an update would fit"
    ):
        space("device")
