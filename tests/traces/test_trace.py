"""The trace: a crash may tear its last line and nothing else."""

import os
import tracemalloc
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.traces import trace as trace_module
from rlplan.traces.trace import TraceError, TraceWriter, read_trace

from ..full_disk import full_disk

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
fields = st.dictionaries(st.text("abcdefg_", min_size=1, max_size=6), values, max_size=4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def _write(path, *events):
    """The trace of these notes, and its bytes."""
    writer = TraceWriter(path)
    for number, event in enumerate(events):
        writer.write("note", number * 0.5, **event)
    writer.close()
    return path.read_bytes()


def _read(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return list(read_trace(path))


@settings(max_examples=40, deadline=None)
@given(events=st.lists(fields, max_size=4), data=st.data())
def test_a_crash_at_any_byte_costs_the_torn_line_only(tmp_path_factory, events, data):
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    written, whole = _write(path, *events), _read(path)
    assert whole == [{"event": "note", "t_s": i * 0.5, **event} for i, event in enumerate(events)]
    assert written.count(b"\n") == len(events), "one line an event, whatever is in it"
    cut = data.draw(st.integers(0, len(written)), label="bytes that reached the disk")
    path.write_bytes(written[:cut])
    kept = whole[: written[:cut].count(b"\n")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = list(read_trace(path))
    assert seen == kept and len(caught) == (not written[:cut].endswith(b"\n") and cut > 0)
    TraceWriter(path).close()
    assert path.read_bytes() == written[: written[:cut].rfind(b"\n") + 1]
    writer = TraceWriter(path)
    writer.write("restart", 99.0)
    writer.close()
    assert _read(path) == [*kept, {"event": "restart", "t_s": 99.0}]


@pytest.mark.parametrize("torn", [0, 1, 7, 8, 9, 40])
def test_a_torn_end_is_cut_off_wherever_blocks_of_reading_meet(path, torn, monkeypatch):
    monkeypatch.setattr(trace_module, "_BLOCK_BYTES", 8)
    whole = _write(path, {"a": 1}, {"b": 2})
    path.write_bytes(whole + b"x" * torn)
    TraceWriter(path).close()
    assert path.read_bytes() == whole
    path.write_bytes(b"x" * torn)
    TraceWriter(path).close()
    assert path.read_bytes() == b""


def test_a_resume_reads_the_end_of_a_long_trace_alone(path):
    with path.open("wb") as file:  # 3 GB that no disk holds: zeros that were never written
        file.seek(3_200_000_000)
        file.write(b"\ntorn")
    tracemalloc.start()
    TraceWriter(path).close()
    assert tracemalloc.get_traced_memory()[1] < 10**6 and path.stat().st_size == 3_200_000_001
    tracemalloc.stop()


def test_a_torn_last_line_is_skipped_with_a_warning_that_names_it(path):
    path.write_bytes(_write(path, {"a": 1}, {"a": 2}) + b'{"event":"sample","t_')
    with pytest.warns(UserWarning, match=r"trace\.jsonl:3: torn last line") as told:
        assert [event["a"] for event in read_trace(path)] == [1, 2]
    assert Path(told[0].filename).name == Path(__file__).name


@pytest.mark.parametrize(
    "damage",
    [b'{"event":"no', b"", b"[1, 2]", b"17", b"\x00\x00\x00\x00", b'{"event":"\xff\xfe"}', b'{"a":1}{"a":2}'],
    ids=["torn", "empty", "list", "number", "nul", "not-utf-8", "glued"],
)
@pytest.mark.parametrize("line", [1, 3])
def test_a_damaged_line_is_an_error_after_the_events_before_it(path, damage, line):
    """The last line too: a crash does not end a line that it tears, and a writer would bury it under good ones."""
    lines = _write(path, {"a": 1}, {"a": 2}, {"a": 3}).splitlines()
    lines[line - 1] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    seen = []
    with pytest.raises(TraceError, match=rf"trace\.jsonl:{line}: ") as caught:
        for event in read_trace(path):
            seen.append(event["a"])
    assert seen == [1, 2][: line - 1] and caught.value.line == line


def test_flushed_events_are_on_disk_before_the_writer_is_closed(path):
    for digits, t_s in ((6, "1.234568"), (None, "1.23456789")):
        path.unlink(missing_ok=True)
        writer = TraceWriter(path, digits)
        writer.write("round", 1.23456789, kind="long")
        writer.flush()
        assert path.read_text() == f'{{"event":"round","t_s":{t_s},"kind":"long"}}\n'
        writer.close()


def test_an_event_that_json_cannot_hold_leaves_no_torn_line(path):
    writer = TraceWriter(path)
    writer.write("note", 0.0)
    with pytest.raises(TypeError):
        writer.write("note", 1.0, what=object())
    writer.close()
    assert len(_read(path)) == 1


@pytest.mark.parametrize("room", [0, 1, 40, 60_000], ids=lambda room: f"room for {room}")
def test_a_full_disk_costs_its_events_and_tears_no_line(path, room):
    writer = TraceWriter(path)
    writer.write("note", 0.0, a=1)
    writer.flush()
    good = path.read_bytes()
    with full_disk(len(good) + room):
        for size, count in ((5_000, 20), (60_000, 1)):
            with pytest.raises(OSError, match="File too large"):
                for _ in range(count):
                    writer.write("sample", 1.0, text="x" * size)
                writer.flush()
            assert path.read_bytes() == good
    writer.write("end", 2.0)
    writer.close()
    assert [event["event"] for event in _read(path)] == ["note", "end"]


def test_what_a_failed_write_left_is_cut_before_the_next_event(path, monkeypatch):
    def refuse(*_):
        raise OSError(5, "Input/output error")

    good = _write(path, {"a": 1})
    writer = TraceWriter(path)
    with monkeypatch.context() as broken, full_disk(len(good) + 10):
        broken.setattr(os, "ftruncate", refuse)
        for what in ("too large", "Input/output"):
            writer.write("note", 1.0)
            with pytest.raises(OSError, match=what):
                writer.flush()
    assert len(path.read_bytes()) == len(good) + 10
    writer.write("end", 3.0)
    writer.close()
    assert [event["event"] for event in _read(path)] == ["note", "end"]


def test_a_writer_that_cannot_flush_is_closed_all_the_same(path):
    writer = TraceWriter(path)
    writer.write("note", 0.0)
    with full_disk(0), pytest.raises(OSError, match="too large"):
        writer.close()
    writer.close()
    assert _read(path) == []


def test_a_missing_trace_is_an_error(path):
    with pytest.raises(FileNotFoundError):
        _read(path)
