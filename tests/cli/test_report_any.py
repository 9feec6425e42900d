"""Traces that somebody broke, by chance: `rlplan report` answers as text, JSON and page, or refuses in one line."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.cli.main import main

from ..plans.page.runs import write_run
from .test_report_page import TEXT

ODD: list[Any] = [
    None, True, 0, 0.0, -0.0, 1, -1, -0.5, 0.5, 1e-300, 1e300, 10**15, 10**18, 10**400, float("inf"), float("-inf"),
    float("nan"), "", "x", "long", "\x1b[31m", "a\nb", "\u202e", "\udc80", "é", [], {}, [1], [[]], {"a": "b"},
    {"trained": 1e9}, {"loss": None}, {"timeouts": 3}, {"logprob_max_abs_diff": float("nan")},
]  # fmt: skip
MISSING = object()
NAN = float("nan")


@pytest.fixture(scope="module")
def events(tmp_path_factory) -> list[dict[str, Any]]:
    home = write_run(tmp_path_factory.mktemp("whole") / "run", TEXT, "exact", steps=6)
    found = [json.loads(line) for line in (home / "trace.jsonl").read_text().splitlines()]
    last = found.pop()
    found.append({"event": "restart", "t_s": last["t_s"], "step": 6, "whom": "engine 1", "reason": "killed"})
    found.append({"event": "skipped", "t_s": last["t_s"], "step": 6, "reason": "not finite", "groups": 2})
    found.append({"event": "failed", "t_s": last["t_s"], "step": 6, "prompt": "p1", "reason": "no answer"})
    return [
        *found,
        {"event": "resume", "t_s": last["t_s"], "step": 6, "steps": 40},
        {**last, "reason": "out of memory"},
    ]


def answer(folder: Path, *options: str, encoding: str = "utf-8") -> tuple[int, str, str]:
    """Exit code, output, and errors of the command; what is no exit is raised."""
    out, errors = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rlplan", "report", str(folder), *options])
        with pytest.raises(SystemExit) as caught:
            main()
    return caught.value.code, out.buffer.getvalue().decode(encoding), errors.getvalue()


def holds(folder: Path, events: list[dict[str, Any]]) -> int:
    """Whatever the trace: exit code 0, or 2 and one line; the same for text, JSON and page."""
    (folder / "plan.yaml").write_text(TEXT)
    (folder / "trace.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    codes = set()
    for options in ((), ("--json",), ("--html", str(folder / "page.html"))):
        code, out, errors = answer(folder, *options)
        codes.add(code)
        assert code in (0, 2), errors
        assert len(errors.splitlines()) == (1 if code == 2 else 0), errors
        assert all(c == "\n" or c.isprintable() for c in out + errors)
        if options == ("--json",) and code == 0:
            json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(codes) == 1
    return codes.pop()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_trace_is_reported_or_refused_in_one_line(data, events, tmp_path):
    broken = copy.deepcopy(events)
    kind = data.draw(st.sampled_from(["step", "sample", "run", "restart", "skipped", "failed", "resume", "end"]))
    here = [event for event in broken if event["event"] == kind]
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(here[0])))
        value = data.draw(st.sampled_from([*ODD, MISSING]))
        for event in here if data.draw(st.booleans()) else [data.draw(st.sampled_from(here))]:
            event.pop(name, None)
            if value is not MISSING:
                event[name] = value
    holds(tmp_path, broken)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"logprob_max_abs_diff": NAN}}, ["differ by at most unknown", "not a number: from this step on"]),
        ({"reward_mean": NAN}, ["reward unknown -> unknown  ??????", "reward_mean; training may have diverged"]),
        ({"metrics": {}}, ["differ by at most unknown"]),
        ({"total_s": 0.0}, ["steps, 0 s a step", "off by unknown"]),
    ],
)
def test_a_run_that_diverged_and_one_that_took_no_time_are_reported_with_what_is_known(
    changes, words, events, tmp_path
):
    changed = [{**event, **changes} if event["event"] == "step" else event for event in events]
    assert holds(tmp_path, changed) == 0
    text = answer(tmp_path)[1]
    assert [word for word in words if word not in text] == []


def test_a_terminal_without_unicode_gets_ascii(events, tmp_path):
    changed = [*events[:-1], {**events[-1], "reason": "kaputt – ü"}]
    assert holds(tmp_path, changed) == 0
    for encoding in ("latin-1", "ascii"):
        code, out, _ = answer(tmp_path, encoding=encoding)
        assert code == 0 and "reward 0.4" in out and "kaputt ?" in out


def test_the_json_of_a_run_that_ended_is_the_same_from_call_to_call_and_that_of_an_open_one_says_how_quiet_it_is(
    events, tmp_path
):
    assert holds(tmp_path, events) == 0
    assert answer(tmp_path, "--json")[1] == answer(tmp_path, "--json")[1]
    assert holds(tmp_path, events[:-1]) == 0
    [found] = json.loads(answer(tmp_path, "--json")[1])["runs"].values()
    assert found["state"] == "open" and found["quiet_s"] >= 0 and found["written_at"].endswith(" UTC")
    page = (tmp_path / "page.html").read_text()
    assert " ago" not in page.split("<script>")[0] and found["written_at"] in page and "This page was written" in page
    assert f"last written {found['written_at']}" in answer(tmp_path)[1] and "; quiet for " in answer(tmp_path)[1]


def test_of_several_runs_the_one_that_cannot_be_read_is_named_and_the_others_are_reported(events, tmp_path):
    for name in ("good", "old"):
        (tmp_path / name).mkdir()
        assert holds(tmp_path / name, events) == 0
    (tmp_path / "old" / "plan.yaml").write_text(TEXT.replace("reward_slack_s", "slack_s"))
    code, out, errors = answer(tmp_path, "--html", str(tmp_path / "page.html"))
    assert code == 0 and "good (exact)" in out and "old (exact)" not in out
    assert len(errors.splitlines()) == 1 and errors.startswith("warning: left out: ")
    assert "old/plan.yaml" in errors and "of another version of rlplan, or was edited" in errors
    assert "Left out: " in (tmp_path / "page.html").read_text()
    assert [*json.loads(answer(tmp_path, "--json")[1])["unreadable"]] == ["old"]
    (tmp_path / "good" / "plan.yaml").unlink()
    code, out, errors = answer(tmp_path)
    assert code == 2 and len(errors.splitlines()) == 1 and "good/plan.yaml" in errors
