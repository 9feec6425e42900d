"""What a run remembers of its prompts' responses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.drafts.history_store import EPOCHS, HISTORY, HistoryStore, saved_history
from rlplan.plans.yaml.errors import InputError

RESPONSES = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=30), st.sampled_from([None, 0.0, 1.0])), max_size=3)
ROUNDS = st.lists(st.lists(st.tuples(st.sampled_from("pqrs"), RESPONSES, st.booleans()), max_size=3), max_size=12)


def filled(rounds, most_bytes=10**6):
    store = HistoryStore(most_bytes)
    for number, prompts in enumerate(rounds):
        for prompt, responses, ahead in prompts:
            store.record(prompt, number // 3, number, responses, ahead)
            store.check_invariants()
    return store


def shown(store, epoch=0):
    """All that drafts can come from, as plain data."""
    found = {prompt: store.of(prompt, epoch) for prompt in "pqrs"}
    return {
        prompt: ([text.tolist() for text in known.responses], known.weights, known.ahead)
        for prompt, known in found.items()
        if known is not None
    }


@given(ROUNDS)
def test_no_more_than_there_is_room_for_is_kept_whatever_is_recorded(rounds):
    filled(rounds, most_bytes=400)


@settings(deadline=None)
@given(ROUNDS)
def test_what_was_packed_is_restored_as_it_was(rounds):
    store, other = filled(rounds), HistoryStore()
    assert other.restore(store.packed()) is None
    other.check_invariants()
    assert shown(other, 3) == shown(store, 3) and (len(other), other.nbytes) == (len(store), store.nbytes)
    assert other.packed() == store.packed()


def test_the_responses_of_the_oldest_rounds_go_first():
    store = HistoryStore(most_bytes=400)
    for number in range(12):
        store.record(f"p{number % 4}", 0, number, [([number] * 10, 0.0)])
    kept = sorted({int(text[0]) for p in range(4) if (known := store.of(f"p{p}", 0)) for text in known.responses})
    assert kept == list(range(kept[0], 12)) and 4 * 10 * len(kept) <= 400 and len(kept) >= 8


def test_a_response_larger_than_all_the_room_is_not_kept():
    store = HistoryStore(most_bytes=400)
    store.record("p", 0, 0, [([1] * 200, 0.0)])
    store.check_invariants()
    assert store.nbytes == 0 and store.of("p", 0) is None


def test_older_epochs_count_less_those_above_the_mean_more_and_the_oldest_nothing():
    store = HistoryStore()
    store.record("p", 0, 0, [([1], 1.0), ([2], 0.0), ([3], None), ([], 1.0)])
    store.record("p", 1, 1, [([4], 0.5)], ahead=True)
    store.record("p", 1, 2, [([5], 0.5)])
    known = store.of("p", 2)
    assert [text.tolist() for text in known.responses] == [[1], [2], [3], [5], [4]] and known.ahead == 1
    assert known.weights == [0.5, 0.25, 0.25, 0.5, 0.5]
    store.record("p", EPOCHS + 1, 9, [([6], 0.0)])
    assert [text.tolist() for text in store.of("p", EPOCHS + 1).responses] == [[5], [6], [4]]
    assert store.of("q", 0) is None


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_or_truncated_file_is_told_and_the_store_goes_on_empty(data):
    store = filled([[("p", [([1, 2, 3] * 20, 1.0)], False)], [("q", [([4] * 30, None)], True)]])
    packed = bytearray(store.packed())
    if data.draw(st.booleans()):
        packed = packed[: data.draw(st.integers(0, len(packed) - 1))]
    else:
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    other = filled([[("s", [([7], 1.0)], False)]])
    fault = other.restore(bytes(packed))
    other.check_invariants()
    if fault is not None:  # some bits of a zip file mean nothing
        assert len(other) == 0 and "\n" not in fault
        other.record("p", 0, 0, [([1], 0.0)])
        assert len(other) == 1


def test_a_file_of_another_format_is_told_with_both_numbers(monkeypatch):
    packed = filled([]).packed()
    monkeypatch.setattr("rlplan.executor.drafts.history_store.FORMAT", 7)
    assert HistoryStore().restore(packed) == "it has format 1, and this version reads 7"


def test_prompts_of_other_data_are_ignored():
    store = filled([[("p", [([1], 1.0)], False), ("q", [([2], 1.0)], False)]])
    other = HistoryStore()
    assert other.restore(store.packed(), ["q", "new"]) is None
    assert set(shown(other)) == {"q"}


def test_a_store_with_less_room_restores_the_latest_rounds():
    store = filled([[("p", [([number] * 10, 0.0)], False)] for number in range(9)])
    other = HistoryStore(most_bytes=200)
    assert other.restore(store.packed()) is None
    other.check_invariants()
    assert int(other.of("p", 2).responses[-1][0]) == 8


def test_what_another_run_remembers_counts_as_of_the_epoch_and_the_rounds_before_the_first():
    store = filled([[("p", [([number] * 10, 0.0)], False)] for number in range(7)])  # epochs 0 to 2
    store.count_as_earlier()
    store.check_invariants()
    known = store.of("p", 0)
    assert known.weights == [0.125] * 3 + [0.25] * 3 + [0.5]
    small = HistoryStore(most_bytes=300)
    small.restore(store.packed())
    small.record("p", 0, 0, [([99] * 10, 0.0)])
    assert int(small.of("p", 0).responses[-1][0]) == 99, "the new run's own rounds went first"


def checkpoint(run, number, data):
    folder = run / "checkpoints" / f"step-{number:06d}"
    folder.mkdir(parents=True)
    if data is not None:
        (folder / HISTORY).write_bytes(data)
    return folder


def test_the_latest_checkpoint_with_a_history_that_can_be_read_is_taken(tmp_path):
    packed = filled([[("p", [([1], 1.0)], False)]]).packed()
    sound = checkpoint(tmp_path, 2, packed)
    checkpoint(tmp_path, 4, packed[:-30])
    checkpoint(tmp_path, 6, None)
    checkpoint(tmp_path, 1, packed)
    assert saved_history(tmp_path) == sound


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: None, "has no checkpoint of a run"),
        (lambda folder: checkpoint(folder, 3, None), "step-000003: No such file"),
        (lambda folder: checkpoint(folder, 3, filled([]).packed()), "step-000003: it is empty"),
        (lambda folder: checkpoint(folder, 3, b"PK"), "step-000003: it is damaged"),
    ],
)
def test_a_run_that_remembers_nothing_is_told_in_one_line(tmp_path, make, says):
    make(tmp_path)
    with pytest.raises(InputError, match=says) as error:
        saved_history(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="no such run folder"):
        saved_history(tmp_path / "nowhere")


def test_a_history_is_a_file_of_plain_arrays_that_no_code_is_loaded_from(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, names=np.array([{"a": 1}], object), numbers=1, worths=1, lengths=1, tokens=1)
    assert HistoryStore().restore(path.read_bytes()) == "it is damaged (ValueError)"
