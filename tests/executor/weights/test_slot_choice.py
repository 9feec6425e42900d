"""Where weights lie for engines, from the devices of trainer ranks and engine ranks alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from rlplan.executor.weights.slots.device_slots import arguments_of, handle_text
from rlplan.executor.weights.slots.slot_choice import WANTED, Choice, choose, wanted_slots
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
def test_gpus_that_are_shared_by_all_engine_ranks_or_by_none_are_used(
    ranks: list[str], engine_ranks: list[str], slots: str
) -> None:
    assert choose(ranks, engine_ranks) == Choice(slots, None)  # type: ignore[arg-type]


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
def test_what_no_gpu_path_serves_goes_through_host_memory_and_says_why(
    ranks: list[str], engine_ranks: list[str], why: str
) -> None:
    choice = choose(ranks, engine_ranks)
    assert choice.slots == "host" and why in (choice.reason or "")


def test_slots_that_are_asked_for_are_taken_only_where_they_can_be() -> None:
    assert choose(["g0"], ["g0"], "host") == Choice("host")
    assert choose(["g0"], ["g0"], "ipc") == Choice("ipc")
    assert choose(["g0"], ["g0"], "nccl") == Choice("host", "nccl: GPUs are laid out for ipc")
    assert choose(["g0", "g0"], ["g0"], "ipc") == Choice("host", "ipc: trainer ranks share a GPU")


def test_an_unknown_name_of_slots_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WANTED, raising=False)
    assert wanted_slots() is None
    monkeypatch.setenv(WANTED, "nccl")
    assert wanted_slots() == "nccl"
    monkeypatch.setenv(WANTED, "gpu")
    with pytest.raises(InputError, match="write host, ipc, nccl"):
        wanted_slots()


def test_a_cuda_handle_survives_as_text_and_names_the_readers_own_device() -> None:
    made = (
        torch.Tensor, torch.Size([4096]), (1,), 512, torch.storage.TypedStorage, torch.uint8, 3, b"\x00h\xff", 8192,
        1024, False, b"counter", 7, b"event", True,
    )  # fmt: skip
    read = arguments_of(handle_text(made), 0)
    assert read == [value if place != 6 else 0 for place, value in enumerate(made)]
