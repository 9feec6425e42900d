"""What a run remembers of its prompts' responses."""

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


def rounds_of_p(count):
    """A response of ten tokens, the round's number, in each round; three rounds are an epoch."""
    return filled([[("p", [([number] * 10, 0.0)], False)] for number in range(count)])


def shown(store, epoch=0):
    """All that drafts can come from, as plain data."""
    found = {prompt: store.of(prompt, epoch) for prompt in "pqrs"}
    return {
        prompt: ([text.tolist() for text in known.responses], known.weights, known.ahead)
        for prompt, known in found.items()
        if known is not None
    }


@given(ROUNDS, st.sampled_from([400, 10**6]))
def test_what_there_is_room_for_is_kept_and_restored_as_it_was(rounds, most_bytes):
    store, other = filled(rounds, most_bytes), HistoryStore()
    assert other.restore(store.packed()) is None
    other.check_invariants()
    assert shown(other, 3) == shown(store, 3) and (len(other), other.nbytes) == (len(store), store.nbytes)
    assert other.packed() == store.packed()


def test_the_responses_of_the_oldest_rounds_go_first():
    store = HistoryStore(most_bytes=400)
    for number in range(12):
        store.record(f"p{number % 4}", 0, number, [([number] * 10, 0.0)])
    kept = sorted({int(text[0]) for p in range(4) if (known := store.of(f"p{p}", 0)) for text in known.responses})
    # When the eleventh came, three went: an eighth of the room is freed at a time.
    assert kept == list(range(3, 12))
    store.record("p", 0, 12, [([1] * 200, 0.0)])
    assert (store.nbytes, len(store)) == (0, 0), "one that is larger than all the room is not kept either"


def test_responses_count_by_their_epoch_and_their_groups_mean():
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


@settings(max_examples=60)
@given(st.booleans(), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_a_damaged_file_is_told_and_the_store_goes_on_empty(cut, place, bit):
    packed = bytearray(filled([[("p", [([1, 2, 3] * 20, 1.0)], False)], [("q", [([4] * 30, None)], True)]]).packed())
    at = int(place * len(packed))
    if cut:
        packed = packed[:at]
    else:
        packed[at] ^= 1 << bit
    other = filled([[("s", [([7], 1.0)], False)]])
    fault = other.restore(bytes(packed))
    other.check_invariants()
    if fault is not None:  # some bits of a zip file mean nothing
        assert len(other) == 0 and "\n" not in fault
        other.record("p", 0, 0, [([1], 0.0)])
        assert len(other) == 1


def test_files_that_this_version_does_not_read_are_told_apart(tmp_path, monkeypatch):
    evil = tmp_path / "evil.npz"
    np.savez(evil, names=np.array([{"a": 1}], object), numbers=1, worths=1, lengths=1, tokens=1)
    assert HistoryStore().restore(evil.read_bytes()) == "it is damaged (ValueError)", "no code is loaded from a file"
    names = np.frombuffer(b'{"format": 1, "prompts": []}', np.uint8)
    none = np.zeros(0, np.int64)
    np.savez(evil, names=names, numbers=none, worths=none, lengths=none, tokens=np.ones(3, np.int32))
    assert HistoryStore().restore(evil.read_bytes()) == "it is damaged (more tokens than its responses have)"
    packed = filled([]).packed()
    monkeypatch.setattr("rlplan.executor.drafts.history_store.FORMAT", 7)
    assert HistoryStore().restore(packed) == "it has format 1, and this version reads 7"


def test_only_prompts_of_the_data_and_what_has_room_are_restored():
    store = filled([[("p", [([1], 1.0)], False), ("q", [([2], 1.0)], False)]])
    other = HistoryStore()
    assert other.restore(store.packed(), ["q", "new"]) is None and set(shown(other)) == {"q"}
    small = HistoryStore(most_bytes=200)
    assert small.restore(rounds_of_p(9).packed()) is None
    small.check_invariants()
    assert int(small.of("p", 2).responses[-1][0]) == 8


def test_what_another_run_remembers_counts_as_before_the_first_epoch():
    store = rounds_of_p(7)  # epochs 0 to 2
    store.count_as_earlier()
    store.check_invariants()
    assert store.of("p", 0).weights == [0.125] * 3 + [0.25] * 3 + [0.5]
    small = HistoryStore(most_bytes=300)
    small.restore(store.packed())
    small.record("p", 0, 0, [([99] * 10, 0.0)])
    assert int(small.of("p", 0).responses[-1][0]) == 99, "the new run's own rounds went first"
    HistoryStore().count_as_earlier()


def checkpoint(run, number, data):
    folder = run / "checkpoints" / f"step-{number:06d}"
    folder.mkdir(parents=True)
    if data is not None:
        (folder / HISTORY).write_bytes(data)
    return folder


def test_the_latest_checkpoint_with_a_readable_history_is_taken(tmp_path):
    packed = rounds_of_p(1).packed()
    sound = checkpoint(tmp_path, 2, packed)
    checkpoint(tmp_path, 4, packed[:-30])
    checkpoint(tmp_path, 6, None)
    checkpoint(tmp_path, 1, packed)
    assert saved_history(tmp_path) == sound


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "has no checkpoint of a run"),
        ([None], "step-000000: No such file"),
        ([filled([]).packed(), b"PK"], "step-000001: it is damaged.*; step-000000: it is empty"),
    ],
)
def test_a_run_that_remembers_nothing_is_told_in_one_line(tmp_path, data, says):
    for number, each in enumerate(data):
        checkpoint(tmp_path, number, each)
    with pytest.raises(InputError, match=says) as error:
        saved_history(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="no such run folder"):
        saved_history(tmp_path / "nowhere")
