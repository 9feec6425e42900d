"""GPUs of names that no data sheet has: misspelt, not planned for, or measured by the user."""

import pytest

from rlplan.planner.check.accelerator_rules import unknown_notes, unlike_names
from rlplan.planner.choose.candidates.engine_layouts import feasible_layouts
from rlplan.planner.choose.candidates.pool_choice import Unplannable, choose_pools, must_be_a_pool
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.costs.memory_table import JobMemory
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.library import library_profile

from ..conftest import laptop, small_job, small_profile


def cluster(name, per_node=8):
    return laptop(accelerators={"kind": "cuda", "name": name, "per_node": per_node, "memory_bytes": 80 * 10**9})


@pytest.mark.parametrize(
    "name", ["H1000", "H1OO", "H010", "HI00", "H1100", "AMD MI300X", "A100-64GB", "H100 MIG 1g.10gb"]
)
def test_a_gpu_like_a_known_one_is_a_fault_unless_measured(name):
    (fault,) = unlike_names(cluster(name), None)
    assert fault.key == "pools.main.accelerators.name" and f"'{name}'" in fault.message and fault.remedy
    with pytest.raises(Unplannable, match=r"pools\.main\.accelerators\.name"):
        must_be_a_pool("main", cluster(name).pools["main"], library_profile("H100", "Qwen2.5-7B"))
    own = small_profile(machine=small_profile().machine.model_copy(update={"kind": "cuda", "accelerator": name}))
    assert unlike_names(cluster(name), own) == unlike_names(cluster(name), None, measures=True) == []
    must_be_a_pool("main", cluster(name).pools["main"], own)


def test_a_gpu_of_which_nothing_is_known_is_noted():
    (note,) = unknown_notes(cluster("Quantum-9"), None)
    assert "'Quantum-9' is no GPU that is known" in note and unlike_names(cluster("Quantum-9"), None) == []
    for name in ("NVIDIA H100 80GB HBM3", "H1000"):
        assert unknown_notes(cluster(name), None) == []


@pytest.mark.parametrize(
    ("sizes", "per_node", "why"),
    [
        ([3], 8, r"\(3 does not divide the model's 28 attention heads\); write one of 1, 2, 4 in search.tp$"),
        ([7], 8, r"\(7 neither divides the model's 4 key-value heads nor is .*\); write one of 1, 2, 4 in search.tp$"),
        ([8, 14], 2, r"\(8 is more than the 2 of a node, 14 is .*\); write one of 1, 2 in search.tp$"),
        ([28], 32, r"none of the profile's 1, 2, 4; write one of 1, 2, 4 in search.tp, or profile again with yours$"),
    ],
)
def test_sizes_that_cannot_be_are_told_with_why_and_those_that_can(sizes, per_node, why):
    profile = library_profile("H100", "Qwen2.5-7B")
    job = small_job(search={"tp": sizes, "micro_batch_tokens": [4096]})
    machines = cluster("H100", per_node=per_node)
    shape = ModelShape("qwen2", 28, 4, None, None, 0)
    chosen = choose_pools(machines, job, profile)
    with pytest.raises(Infeasible, match=why):
        feasible_layouts(chosen, job, JobMemory(profile, chosen.pools, job.model.dtype), SolveOptions(model=shape))
