"""Where weights lie for engines, from the devices of trainer ranks and engine ranks alone."""

import pytest

pytest.importorskip("torch")

from rlplan.executor.weights.transfer import choose


@pytest.mark.parametrize(
    ("ranks", "engine_ranks", "slots"),
    [
        (["g0", "g1"], ["g0", "g1"], "ipc"),
        (["g0", "g1", "g2", "g3"], ["g2", "g1"], "ipc"),
        (["g0", "g1"], ["g2", "g3", "g4"], "nccl"),
        (["", ""], ["", ""], "host"),
    ],
)
def test_gpus_shared_by_all_engine_ranks_or_by_none_are_used(ranks, engine_ranks, slots):
    assert choose(ranks, engine_ranks, one_node=True) == (slots, None)


@pytest.mark.parametrize(
    ("ranks", "engine_ranks", "why"),
    [
        (["g0", "g1"], ["g1", "g2"], "1 of 2 engine ranks are on GPUs of the trainer"),
        (["g0", "g0"], ["g1"], "engine ranks share a GPU"),
        (["g0"], ["g1", "g1"], "engine ranks share a GPU"),
        (["g0", ""], ["g0"], "has no GPU"),
        (["g0"], ["g0", ""], "has no GPU"),
    ],
)
def test_what_no_gpu_path_serves_goes_through_host_memory_and_says_why(ranks, engine_ranks, why):
    slots, reason = choose(ranks, engine_ranks, one_node=True)
    assert slots == "host" and why in (reason or "")


def test_cpus_of_several_nodes_are_a_group():
    assert choose(["", ""], [""], one_node=False) == ("nccl", None)
