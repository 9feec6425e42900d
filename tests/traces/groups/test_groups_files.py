"""The folder of groups that are executed, and what its journal of moves tells."""

import os

import pytest

from rlplan.plans.yaml.errors import InputError
from rlplan.traces.groups.groups_folder import (
    MOVES,
    bounds_of,
    group_folders,
    is_one_groups,
    job_folder,
    moves_of,
    refusal_of,
    request_file,
    requests,
    was_asked_to_change,
)

from ..events import write

WANTED = {
    "event": "wanted", "t_s": 1.0, "id": "r1", "plan": "new.yaml", "sha256": "5" * 64,
    "moves": [{"job": "a", "from_group": "g1", "to_group": "g2"}, {"job": "b", "from_group": "g1", "to_group": None}],
}  # fmt: skip


def told(folder, *events, read=moves_of):
    fields = ({"t_s": 2.0, "id": "r1", **event} for event in events)
    write(folder / MOVES, *fields)
    return read(folder)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        ({"event": "drain", "job": "a"}, "stopping"),
        ({"event": "out", "job": "a", "drain_s": 3.0}, "stopped"),
        ({"event": "enter", "job": "a"}, "starting"),
        ({"event": "short", "job": "a", "reason": "no node"}, "lacks nodes"),
        ({"event": "in", "job": "a", "start_s": 4.0, "outage_s": 5.0}, "made"),
        ({"event": "ended", "job": "a"}, "ended"),
        ({"event": "failed", "job": "a", "reason": "killed"}, "failed"),
        ({"event": "failed", "job": "a", "id": "r0"}, "to do"),
    ],
)
def test_a_move_is_in_the_state_of_its_last_event(event, state, tmp_path):
    found = told(tmp_path, {"event": "in", "job": "a", "id": "r0"}, WANTED, event)
    assert (found["id"], found["plan"], found["sha256"], found["state"]) == ("r1", "new.yaml", "5" * 64, "under way")
    kept = {key: event[key] for key in ("drain_s", "start_s", "outage_s", "reason") if key in event}
    assert found["moves"] == [{**WANTED["moves"][0], "state": state, **kept}, {**WANTED["moves"][1], "state": "to do"}]


def test_a_plan_is_applied_or_stopped_or_taken_back(tmp_path):
    assert moves_of(tmp_path) is None and not was_asked_to_change(tmp_path)
    found = told(tmp_path, WANTED, {"event": "out", "job": "b", "drain_s": None}, {"event": "applied", "seconds": 9.0})
    assert (found["state"], found["seconds"], found["moves"][1]["state"]) == ("applied", 9.0, "made")
    assert was_asked_to_change(tmp_path) and was_asked_to_change(tmp_path / "g1")
    assert not was_asked_to_change(tmp_path / "g1" / "a")
    assert told(tmp_path, WANTED, {"event": "stopped"})["state"] == "stopped"
    assert told(tmp_path, WANTED, {"event": "stopped"}, {"event": "resumed"})["state"] == "under way"
    assert told(tmp_path, WANTED, {"event": "refused", "reason": "old"}) is None
    assert told(tmp_path, {**WANTED, "id": "r0"}, WANTED)["id"] == "r1"


def test_bounds_and_the_re_plan_that_waits_are_told(tmp_path):
    bound = [{"event": "bound", "job": job, "state": state} for job, state in (("a", "alarm"), ("b", "broken"))]
    plan = {"plan": "p.yaml", "moves": 2, "price_s": 60.0, "applies": False, "reason": "too dear"}
    events = [*bound, {"event": "bound", "job": "a", "state": "cleared"}, {"event": "proposed", **plan}]
    assert told(tmp_path, *events, read=bounds_of) == ({"b": "broken"}, plan)
    assert told(tmp_path, *events, {"event": "applied"}, read=bounds_of) == ({}, None)
    refused = [{"event": "refused", "id": key, "reason": f"of {key}"} for key in ("r0", "r1")]
    told(tmp_path, *refused, {"event": "other"})
    assert (refusal_of(tmp_path, "r1"), refusal_of(tmp_path, "r2")) == ("of r1", None)


def test_a_damaged_journal_of_moves_is_one_line(tmp_path):
    for events, words in (
        ([{"event": "wanted"}], "an event lacks 'moves'"),
        ([WANTED, {"event": "drain"}], "lacks 'job'"),
    ):
        with pytest.raises(InputError, match=rf"{MOVES}: an event lacks.*of another version") as caught:
            told(tmp_path, *events)
        assert words in str(caught.value)
    (tmp_path / MOVES).write_text("{\n")
    with pytest.raises(InputError, match="not a trace event"):
        moves_of(tmp_path)


def test_folders_of_groups_come_by_their_numbers(tmp_path):
    for name, text in (("g10", '{"group": "g10"}\n'), ("g2", "damaged\n"), ("g3", "\n"), ("notes", '{"group": "x"}\n')):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "turns.jsonl").write_text("" if name == "g3" else text)
    (tmp_path / "g10" / "b").mkdir()
    (tmp_path / "g4").mkdir()
    assert list(group_folders(tmp_path).items()) == [(name, tmp_path / name) for name in ("g2", "g3", "g10")]
    assert group_folders(tmp_path / "g10") == {"g10": tmp_path / "g10"} and group_folders(tmp_path / "none") == {}
    assert is_one_groups(tmp_path / "g10") and not is_one_groups(tmp_path)
    assert job_folder(tmp_path, "b") == tmp_path / "g10" / "b" and job_folder(tmp_path, "a") == tmp_path / "g2" / "a"
    assert job_folder(tmp_path, "c") is None


def test_requests_come_oldest_first(tmp_path):
    for index, name in enumerate(("b", "a", "c")):
        path = request_file(tmp_path, name)
        path.touch()
        os.utime(path, ns=(10 + index // 2, 10 + index // 2))
    assert [path.name for path in requests(tmp_path)] == [".apply-a.json", ".apply-b.json", ".apply-c.json"]
