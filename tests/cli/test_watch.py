"""`rlplan watch`: its lines, its server on loopback, what the server answers to strangers."""

import http.client
import json
import shutil
import socket
import time
from types import SimpleNamespace

import pytest

from rlplan.cli import watch
from rlplan.cli.watch import FIRST_PORT, PORTS, PageServer
from rlplan.traces.watched_runs import WatchedRuns

from ..plans.conftest import PLAN_TEXT
from ..plans.page.runs import write_run
from .command_line import printed, refused, rlplan
from .run_folders import write_runs


@pytest.fixture
def growing(tmp_path):
    """A folder whose run has done two steps of forty, and the lines of its next step."""
    whole = write_run(tmp_path / "whole", PLAN_TEXT, "exact", steps=3)
    lines = (whole / "trace.jsonl").read_text().splitlines(keepends=True)
    home = tmp_path / "run"
    home.mkdir()
    shutil.copy(whole / "plan.yaml", home)
    ends = [place for place, line in enumerate(lines) if '"event": "step"' in line]
    (home / "trace.jsonl").write_text("".join(lines[: ends[1] + 1]))
    return home, "".join(lines[ends[1] + 1 : ends[2] + 1])


@pytest.fixture
def served(growing):
    """The server of that run's page."""
    with PageServer(WatchedRuns([growing[0]]), None, "run <b>") as server:
        yield server


def get(server, path, host=None, method="GET"):
    """The answer to a request: its status, its headers, its body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return found


def events(server):
    """What the page is told, one by one."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    connection.close()


def append(home, text):
    with (home / "trace.jsonl").open("a") as file:
        file.write(text)


def test_the_page_and_its_content_are_served_as_a_report_has_them(served):
    status, headers, page = get(served, "/")
    assert status == 200 and "EventSource" in page and "Copyright 2012-" in page and "run &lt;b&gt;" in page
    assert "connect-src 'self'" in headers["Content-Security-Policy"] and headers["Cache-Control"] == "no-store"
    status, _, content = get(served, "/content")
    assert status == 200 and "EventSource" not in content and len(content) < 200_000
    assert content.split("<main>")[1].split("</main>")[0] == page.split("<main>")[1].split("</main>")[0]
    for path, found in (("/report.json", lambda r: r["runs"]["run"]), ("/report.json?run=run", lambda r: r)):
        detail = found(json.loads(get(served, path)[2]))
        assert detail["steps"] == 2 and detail["state"] == "running" and detail["left_s"] > 0


def test_a_page_hears_of_each_step_and_of_the_end(growing, served):
    home, step = growing
    told = events(served)
    first = next(told)
    assert "run: step 2 of 40, about" in first["text"] and not first["ended"]
    append(home, step[:-9])
    served.watched.look()
    served.wake()
    begun = next(told)
    append(home, step[-9:])
    served.watched.look()
    served.wake()
    second = next(told)
    assert "run: step 2" in begun["text"] and "run: step 3 of 40" in second["text"]
    assert second["version"] > begun["version"] >= first["version"] and "3 of 40" in get(served, "/content")[2]
    append(home, json.dumps({"event": "end", "t_s": 99.0, "step": 3, "finished": True}) + "\n")
    served.watched.look()
    served.wake()
    assert next(told)["ended"]
    served.closing = True
    served.wake()
    assert [each["closing"] for each in told] == [True]


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/", "localhost:9999", 200),
        ("/content", "127.0.0.1", 200),
        ("/", "evil.example", 421),
        ("/events", "evil.example:8571", 421),
        ("/report.json", "127.0.0.1.evil.example", 421),
        ("/", "[", 421),
        ("/", "127.0.0.1@evil.example", 421),
        ("/../../etc/passwd", None, 404),
        ("/%2e%2e/trace.jsonl", None, 404),
        ("//127.0.0.1/trace.jsonl", None, 404),
        ("/trace.jsonl", None, 404),
        ("/report.json?run=../run", None, 404),
        ("/report.json?run=%00&run=%ff", None, 404),
    ],
)
def test_only_the_pages_addresses_are_answered_and_only_under_this_machines_name(path, host, status, served):
    found, _, body = get(served, path, host)
    assert found == status and "/bin/" not in body and "Traceback" not in body


def test_nothing_can_be_written_and_a_broken_request_harms_nobody(served):
    assert get(served, "/", method="POST")[0] == 501 and get(served, "/", method="DELETE")[0] == 501
    bad = (b"GET http://[ HTTP/1.1\r\nHost: localhost", b"GET / HTTP/1.1", b"GET /" + b"a" * 70_000, b"\x00\xff")
    for text, told in zip(bad, (b" 400 ", b" 421 ", b" 414 ", b"400"), strict=True):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as stranger:
            stranger.sendall(text + b"\r\n\r\n")
            assert told in stranger.recv(4000)
    assert get(served, "/content")[0] == 200


def test_ports_that_are_taken_are_passed_over_or_told(growing):
    watched = WatchedRuns([growing[0]])
    with PageServer(watched, None, "") as first, PageServer(watched, None, "") as second:
        assert FIRST_PORT <= first.port < second.port < FIRST_PORT + PORTS
        refused(rlplan("watch", growing[0], "--port", first.port), f"port {first.port} is in use", "leave --port out")


def test_runs_that_have_ended_are_told_in_a_line_each(tmp_path):
    for name, steps in (("a", 40), ("b", 3)):
        write_run(
            tmp_path / "runs" / name,
            PLAN_TEXT,
            "exact",
            steps=steps,
            end={"event": "end", "t_s": 1e3, "step": steps, "finished": steps == 40},
        )
    evaluated = {
        "event": "evaluation",
        "t_s": 9.0,
        "step": 0,
        "prompts": 4,
        "samples": 1,
        "reward": [0.5, 0.1],
        "pass_at": {},
        "mean_tokens": 9.0,
        "truncated": 0.0,
        "failed": 0,
        "seconds": 1.0,
    }
    append(tmp_path / "runs" / "a", json.dumps(evaluated) + "\n")
    told = printed("watch", tmp_path / "runs", "--no-serve", "--until-end").splitlines()
    assert [line.split("  ")[0] for line in told] == [
        "a 40/40 long",
        "a: evaluation after 0 steps: reward 0.500 ± 0.100 (4 prompts x 1, 9 tokens, 1.00 s)",
        "a: finished: 40 of 40 steps",
        "b 3/40 short",
        "b: stopped by a signal, with a checkpoint: 3 of 40 steps",
    ]
    rows = list(map(json.loads, printed("watch", tmp_path / "runs", "--until-end", "--json").splitlines()))
    assert rows[0]["url"].startswith("http://127.0.0.1:")
    assert [(row["run"], row["step"], row["state"], row["left_s"]) for row in rows[1:]] == [
        ("a", 40, "finished", None),
        ("b", 3, "stopped", None),
    ]


def test_each_step_is_told_until_ctrl_c_ends_the_watch(growing, monkeypatch):
    home, step = growing

    def happens():
        append(home, step)
        yield
        raise KeyboardInterrupt

    between_looks = happens()
    monkeypatch.setattr(watch, "time", SimpleNamespace(time=time.time, sleep=lambda seconds: next(between_looks)))
    ended = rlplan("watch", home, "--no-serve")
    assert ended.returncode == 130 and ended.stderr.strip() == ""
    lines = ended.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["run 2/40 short", "run 3/40 short"]
    assert all(line.endswith(" min left") for line in lines)


def test_what_cannot_be_watched_is_told_in_one_line(tmp_path):
    groups = write_runs(tmp_path / "groups")
    refused(rlplan("watch", tmp_path / "none"), "no such run folder")
    refused(rlplan("watch", tmp_path), "holds no run")
    refused(rlplan("watch", tmp_path, "--no-serve", "--port", 9000), "--port is of the page")
    refused(rlplan("watch", groups), "holds groups of jobs", "rlplan status", str(groups / "g1"))
