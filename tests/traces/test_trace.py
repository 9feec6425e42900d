"""The trace: a crash may tear its last line and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.traces.trace import TraceError, TraceWriter, read_trace

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
fields = st.dictionaries(st.text("abcdefg_", min_size=1, max_size=6), values, max_size=4)


def _write(path: Path, *events: dict[str, Any]) -> None:
    writer = TraceWriter(path)
    for number, event in enumerate(events):
        writer.write("note", number * 0.5, **event)
    writer.close()


def _read(path: Path) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return list(read_trace(path))


@settings(max_examples=40, deadline=None)
@given(events=st.lists(fields, max_size=4))
def test_what_was_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    _write(path, *events)
    assert _read(path) == [{"event": "note", "t_s": i * 0.5, **event} for i, event in enumerate(events)]
    assert path.read_bytes().count(b"\n") == len(events), "one line an event, whatever is in it"


@settings(max_examples=80, deadline=None)
@given(events=st.lists(fields, min_size=1, max_size=4), data=st.data())
def test_a_crash_at_any_byte_costs_the_torn_line_only_and_the_next_run_continues_cleanly(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    _write(path, *events)
    whole, written = _read(path), path.read_bytes()
    cut = data.draw(st.integers(0, len(written)), label="bytes that reached the disk")
    path.write_bytes(written[:cut])
    kept = whole[: written[:cut].count(b"\n")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = list(read_trace(path))
    assert seen == kept
    assert len(caught) == (not written[:cut].endswith(b"\n") and cut > 0)
    writer = TraceWriter(path)
    writer.write("restart", 99.0)
    writer.close()
    assert _read(path) == [*kept, {"event": "restart", "t_s": 99.0}]


def test_a_torn_last_line_is_skipped_with_a_warning_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    _write(path, {"a": 1}, {"a": 2})
    path.write_bytes(path.read_bytes() + b'{"event":"sample","t_')
    with pytest.warns(UserWarning, match=r"trace\.jsonl:3: torn last line"):
        assert [event["a"] for event in read_trace(path)] == [1, 2]


@pytest.mark.parametrize(
    "damage",
    [b'{"event":"no', b"", b"[1, 2]", b"17", b"\x00\x00\x00\x00", b'{"event":"\xff\xfe"}', b'{"a":1}{"a":2}'],
    ids=["torn", "empty", "list", "number", "nul", "not-utf-8", "glued"],
)
@pytest.mark.parametrize("line", [1, 2, 3])
def test_damage_of_a_line_that_was_ended_is_an_error_with_its_line(tmp_path: Path, damage: bytes, line: int) -> None:
    """The last line too: a crash does not end a line that it tears, and a writer would bury it under good ones."""
    path = tmp_path / "trace.jsonl"
    _write(path, {}, {}, {})
    lines = path.read_bytes().splitlines()
    lines[line - 1] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(TraceError, match=rf"trace\.jsonl:{line}: ") as caught:
        _read(path)
    assert caught.value.line == line


def test_events_before_the_damage_are_still_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    _write(path, {"a": 1}, {"a": 2})
    path.write_bytes(path.read_bytes() + b"what\n" + path.read_bytes())
    events = read_trace(path)
    assert [next(events)["a"], next(events)["a"]] == [1, 2]
    with pytest.raises(TraceError):
        next(events)


def test_flushed_events_are_on_disk_before_the_writer_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path)
    writer.write("round", 1.23456789, kind="long")
    writer.flush()
    assert path.read_text() == '{"event":"round","t_s":1.234568,"kind":"long"}\n'
    writer.close()


def test_an_event_that_json_cannot_hold_leaves_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path)
    writer.write("note", 0.0)
    with pytest.raises(TypeError):
        writer.write("note", 1.0, what=object())
    writer.close()
    assert len(_read(path)) == 1


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file grows beyond `room` bytes: of a write that would, the kernel takes the first part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 40, 5_000, 60_000], ids=lambda room: f"room for {room}")
def test_a_disk_that_is_full_for_a_while_costs_the_events_of_that_while_and_no_line_is_torn(
    tmp_path: Path, room: int
) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path)
    writer.write("note", 0.0, a=1)
    writer.flush()
    good = path.read_bytes()
    with full_disk(len(good) + room):
        with pytest.raises(OSError, match="File too large"):
            for _ in range(20):
                writer.write("sample", 1.0, text="x" * 5_000)
            writer.flush()
        assert path.read_bytes() == good
        with pytest.raises(OSError, match="File too large"):
            writer.write("note", 1.0, text="x" * 60_000)
            writer.flush()
    writer.write("end", 2.0)
    writer.close()
    assert [event["event"] for event in _read(path)] == ["note", "end"]


def test_what_a_failed_write_left_is_cut_off_before_the_next_event_if_it_could_not_be_cut_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "trace.jsonl"
    _write(path, {"a": 1})
    good = path.read_bytes()
    writer = TraceWriter(path)
    with monkeypatch.context() as broken, full_disk(len(good) + 10):
        broken.setattr(os, "ftruncate", refuse)
        writer.write("note", 1.0)
        with pytest.raises(OSError, match="too large"):
            writer.flush()
        writer.write("note", 2.0)
        with pytest.raises(OSError, match="Input/output"):
            writer.flush()
    assert len(path.read_bytes()) == len(good) + 10
    writer.write("end", 3.0)
    writer.close()
    assert [event["event"] for event in _read(path)] == ["note", "end"]


def test_a_writer_that_cannot_flush_is_closed_all_the_same(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    writer.write("note", 0.0)
    with full_disk(0), pytest.raises(OSError, match="too large"):
        writer.close()
    writer.close()
    assert _read(tmp_path / "trace.jsonl") == []


def test_an_empty_trace_has_no_events_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with pytest.raises(FileNotFoundError):
        _read(path)
    TraceWriter(path).close()
    assert _read(path) == []


def test_a_resumed_writer_leaves_whole_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    _write(path, {"a": 1})
    before = path.read_bytes()
    TraceWriter(path).close()
    assert path.read_bytes() == before
    assert json.loads(before)["a"] == 1
