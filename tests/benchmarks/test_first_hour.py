"""The benchmark of the first hour: what it draws, and that it sees each way in which a mistake is answered badly."""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from rlplan.benchmarks.first_hour import __main__ as bench
from rlplan.benchmarks.first_hour import sample_folder
from rlplan.benchmarks.first_hour.mistake import SOLVE, Mistake
from rlplan.benchmarks.first_hour.newcomer_commands import commands
from rlplan.benchmarks.first_hour.newcomer_jobs import JOBS, write_job
from rlplan.cli import main as command_line


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """The folder that mistakes are made in, with one plan under two names."""
    folder = tmp_path_factory.mktemp("first-hour") / "ground"
    real = sample_folder.rlplan

    def once(*arguments):
        if arguments[-1] == folder / "plan.yaml":
            shutil.copy(folder / "sync.yaml", folder / "plan.yaml")
        else:
            real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_folder, "rlplan", once)
        bench.build(folder)
    return folder


def answered(mistakes, ground, home):
    """The outcomes of mistakes, all of which are answered as documented."""
    outcomes = [bench.attempt(mistake, ground, home) for mistake in mistakes]
    assert [f"{o.mistake.name}: {o.faults}: {o.output}" for o in outcomes if o.faults] == []
    assert bench.counts(outcomes)["mistakes"] == len(outcomes)
    return outcomes


def test_three_mistakes_are_answered_as_documented(ground, tmp_path):
    quick = [m for m in bench.mistakes(60, seed=1) if m.command and m.command[0] in ("show", "check", "fmt")]
    outcomes = answered(quick[:3], ground, tmp_path / "here")
    assert len(outcomes) == 3 and any(outcome.refused for outcome in outcomes)


@pytest.mark.search
def test_twenty_mistakes_are_answered_as_documented(tmp_path):
    bench.build(tmp_path / "ground")
    outcomes = answered(bench.mistakes(20, seed=1), tmp_path / "ground", tmp_path / "here")
    assert sum(outcome.refused for outcome in outcomes) >= 12, "most of them are no documents any more"


def test_the_same_seed_draws_the_same_mistakes_of_every_kind():
    one, again, other = (bench.mistakes(500, seed) for seed in (3, 3, 4))
    names = [[mistake.name for mistake in drawn] for drawn in (one, again, other)]
    assert names[0] == names[1] != names[2] and len(names[0]) == 500
    drawn = {mistake.command[0] for mistake in one if mistake.command}
    assert drawn >= {"profile", "solve", "check", "diff", "show", "simulate", "execute", "report", "tune", "fmt"}
    assert {m.name.split(":")[0] for m in one} >= {"job.yaml", "cluster.yaml", "plan.yaml", "lengths.jsonl"}


def says(text, code):
    def answer():
        print(text, file=sys.stderr)
        raise SystemExit(code)

    return answer


def crash():
    raise RuntimeError("a bug")


def write():
    Path("left.yaml").write_text("half")
    says("error: sorry", 2)()


def swell():
    held = bytearray(1_100_000_000)
    raise SystemExit(len(held) and 2)


ANSWERS = {
    "traceback": crash, "endless": lambda: time.sleep(60), "written": write, "exit code": says("", 77),
    "not one line": says("error: one\nand what else to say of it", 2), "taken": says("", 0), "memory": swell,
}  # fmt: skip


@pytest.mark.parametrize("fault", ANSWERS)
def test_each_way_to_answer_a_mistake_badly_is_seen(fault, monkeypatch, tmp_path):
    monkeypatch.setattr(command_line, "main", ANSWERS[fault])
    (tmp_path / "ground").mkdir()
    limit_s = 0.5 if fault == "endless" else 60.0
    mistake = Mistake("a test", ("show", "x"), True)
    outcome = bench.attempt(mistake, tmp_path / "ground", tmp_path / "here", limit_s=limit_s)
    # What asks for more than 1 GB gets none of it.
    assert {"memory": "traceback"}.get(fault, fault) in outcome.faults and not (tmp_path / "here").exists()


def test_memory_that_the_calling_process_holds_is_not_counted(monkeypatch, tmp_path):
    """Other tests that ran in this process may have left it with more than the limit."""
    monkeypatch.setattr(command_line, "main", says("error: refused", 2))
    (tmp_path / "ground").mkdir()
    held = bytearray(b"\1") * 1_100_000_000
    outcome = bench.attempt(Mistake("a test", ("show", "x"), True), tmp_path / "ground", tmp_path / "here")
    assert outcome.faults == () and outcome.peak_bytes < 200_000_000, len(held)


def test_a_solved_plan_that_check_rejects_is_counted(ground, monkeypatch, tmp_path):
    real = command_line.main

    def careless():
        if sys.argv[1] != "solve":
            return real()
        text = (Path("sync.yaml")).read_text()
        Path("new.yaml").write_text(text.replace("checksum_every: 10", "checksum_every: 11"))
        raise SystemExit(0)

    monkeypatch.setattr(command_line, "main", careless)
    outcome = bench.attempt(Mistake("a test", SOLVE, False), ground, tmp_path / "here")
    assert outcome.faults == ("checked bad",) and "decisions-edited" in outcome.output


def test_the_way_has_every_command_of_a_newcomer_for_three_jobs(tmp_path):
    assert [(job.nodes, job.reward) for job in JOBS] == [(8, "math"), (2, "code"), (4, "math")]
    for job in JOBS:
        write_job(tmp_path / job.name, job)
        assert {words[0] for words in commands(tmp_path / job.name, job)} == {
            "init", "profile", "check", "solve", "show", "diff", "simulate", "compare", "execute"
        }  # fmt: skip
    checked = [str(path) for path in tmp_path.rglob("*.yaml")]
    assert command_line.cli.main(["check", *checked, "--json"], standalone_mode=False) == 0, "the documents are sound"


def test_the_result_is_one_line_of_json_with_what_must_be_none(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["--mistakes", "0", "--skip-way", "--json"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert {found[key] for key in ("tracebacks", "endless", "solved_but_checked_bad", "taken_silently")} == {0}
