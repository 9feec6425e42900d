"""The benchmark of the first hour: what it draws, and that it sees each way in which a mistake is answered badly."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from rlplan.cli import main as command_line

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(ROOT))
    from benchmarks.first_hour import __main__ as bench

    yield bench
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def ground(bench, tmp_path_factory):
    """The folder that mistakes are made in."""
    folder = tmp_path_factory.mktemp("first-hour") / "ground"
    bench.build(folder)
    return folder


def test_twenty_mistakes_are_answered_as_documented(bench, ground, tmp_path):
    outcomes = [bench.attempt(mistake, ground, tmp_path / "here") for mistake in bench.mistakes(20, seed=1)]
    assert [f"{o.mistake.name}: {o.faults}: {o.output}" for o in outcomes if o.faults] == []
    assert sum(outcome.refused for outcome in outcomes) >= 12, "most of them are no documents any more"
    assert bench.counts(outcomes)["mistakes"] == 20


def test_the_same_seed_draws_the_same_mistakes_of_every_kind(bench):
    one, again, other = (bench.mistakes(500, seed) for seed in (3, 3, 4))
    names = [[mistake.name for mistake in drawn] for drawn in (one, again, other)]
    assert names[0] == names[1] != names[2] and len(names[0]) == 500
    commands = {mistake.command[0] for mistake in one if mistake.command}
    assert commands >= {"profile", "solve", "check", "diff", "show", "simulate", "execute", "report", "tune", "fmt"}
    assert {m.name.split(":")[0] for m in one} >= {"job.yaml", "cluster.yaml", "plan.yaml", "lengths.jsonl"}


def behave(monkeypatch, what):
    monkeypatch.setattr(command_line, "main", what)


def crash():
    raise RuntimeError("a bug")


def hang():
    time.sleep(60)


def write():
    Path("left.yaml").write_text("half")
    print("error: sorry", file=sys.stderr)
    raise SystemExit(2)


def say_two_lines():
    print("error: one\nand what else to say of it", file=sys.stderr)
    raise SystemExit(2)


def end_oddly():
    raise SystemExit(77)


def take():
    raise SystemExit(0)


def swell():
    held = bytearray(1_100_000_000)
    raise SystemExit(len(held) and 2)


@pytest.mark.parametrize(
    ("what", "fault"),
    [(crash, "traceback"), (hang, "endless"), (write, "written"), (say_two_lines, "not one line"),
     (end_oddly, "exit code"), (take, "taken"), (swell, "traceback")],
)  # fmt: skip
def test_each_way_to_answer_a_mistake_badly_is_seen(what, fault, bench, monkeypatch, tmp_path):
    from benchmarks.first_hour.mistake import Mistake

    behave(monkeypatch, what)
    (tmp_path / "ground").mkdir()
    mistake = Mistake("a test", ("show", "x"), True)
    outcome = bench.attempt(mistake, tmp_path / "ground", tmp_path / "here", limit_s=2.0)
    assert fault in outcome.faults and not (tmp_path / "here").exists()


def test_memory_that_the_calling_process_holds_is_not_counted(bench, monkeypatch, tmp_path):
    """Other tests that ran in this process may have left it with more than the limit."""
    from benchmarks.first_hour.mistake import Mistake

    def refuse():
        print("error: refused", file=sys.stderr)
        raise SystemExit(2)

    behave(monkeypatch, refuse)
    (tmp_path / "ground").mkdir()
    held = bytearray(b"\1") * 1_100_000_000
    outcome = bench.attempt(Mistake("a test", ("show", "x"), True), tmp_path / "ground", tmp_path / "here")
    assert outcome.faults == () and outcome.peak_bytes < 200_000_000, len(held)


def test_a_solved_plan_that_check_rejects_is_counted(bench, ground, monkeypatch, tmp_path):
    from benchmarks.first_hour.mistake import SOLVE, Mistake

    real = command_line.main

    def careless():
        if sys.argv[1] != "solve":
            return real()
        text = (Path("sync.yaml")).read_text()
        Path("new.yaml").write_text(text.replace("checksum_every: 10", "checksum_every: 11"))
        raise SystemExit(0)

    behave(monkeypatch, careless)
    outcome = bench.attempt(Mistake("a test", SOLVE, False), ground, tmp_path / "here")
    assert outcome.faults == ("checked bad",) and "decisions-edited" in outcome.output


def test_the_way_has_every_command_of_a_newcomer_for_three_jobs(bench, tmp_path):
    from benchmarks.first_hour.newcomer_commands import commands
    from benchmarks.first_hour.newcomer_jobs import JOBS, write_job

    assert [(job.nodes, job.reward) for job in JOBS] == [(8, "math"), (2, "code"), (4, "math")]
    for job in JOBS:
        write_job(tmp_path / job.name, job)
        lines = commands(tmp_path / job.name, job)
        assert {words[0] for words in lines} == {
            "init", "profile", "check", "solve", "show", "diff", "simulate", "compare", "execute"
        }  # fmt: skip
    checked = [str(path) for path in tmp_path.rglob("*.yaml")]
    monkey = command_line.cli.main(["check", *checked, "--json"], standalone_mode=False)
    assert monkey == 0, "the documents are sound"


def test_the_result_is_one_line_of_json_with_what_must_be_none(bench, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["--mistakes", "0", "--skip-way", "--json"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert {found[key] for key in ("tracebacks", "endless", "solved_but_checked_bad", "taken_silently")} == {0}
