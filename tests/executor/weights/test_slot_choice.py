"""Where weights lie for engines, from the devices of trainer ranks and engine ranks alone."""

import pytest

pytest.importorskip("torch")

from rlplan.executor.weights.ways import WANTED, choose, wanted_slots
from rlplan.plans.yaml.errors import InputError


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
    assert choose(ranks, engine_ranks) == (slots, None)


@pytest.mark.parametrize(
    ("ranks", "engine_ranks", "why"),
    [
        (["g0", "g1"], ["g1", "g2"], "1 of 2 engine ranks are on GPUs of the trainer"),
        (["g0", "g0"], ["g1"], "trainer ranks share a GPU"),
        (["g0"], ["g1", "g1"], "engine ranks share a GPU"),
        (["g0", ""], ["g0"], "has no GPU"),
        (["g0"], ["g0", ""], "has no GPU"),
    ],
)
def test_what_no_gpu_path_serves_goes_through_host_memory_and_says_why(ranks, engine_ranks, why):
    slots, reason = choose(ranks, engine_ranks)
    assert slots == "host" and why in (reason or "")


def test_slots_that_are_asked_for_are_taken_only_where_they_can_be():
    assert choose(["g0"], ["g0"], "host") == ("host", None)
    assert choose(["g0"], ["g0"], "ipc") == ("ipc", None)
    assert choose(["g0"], ["g0"], "nccl") == ("host", "nccl: GPUs are laid out for ipc")
    assert choose(["g0", "g0"], ["g0"], "ipc") == ("host", "ipc: trainer ranks share a GPU")


def test_an_unknown_name_of_slots_in_the_environment_is_refused(monkeypatch):
    monkeypatch.delenv(WANTED, raising=False)
    assert wanted_slots() is None
    monkeypatch.setenv(WANTED, "nccl")
    assert wanted_slots() == "nccl"
    monkeypatch.setenv(WANTED, "gpu")
    with pytest.raises(InputError, match="write host, ipc, nccl"):
        wanted_slots()
