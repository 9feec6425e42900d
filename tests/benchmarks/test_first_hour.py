"""The benchmark of the first hour: what it draws, and that it sees each way in which a mistake is answered badly."""

import json

import pytest

from rlplan.benchmarks import first_hour as bench

SHOW = ("show", "{at}/cpu-demo.yaml")


def test_three_mistakes_are_answered_as_documented(tmp_path):
    quick = [mistake for mistake in bench.mistakes(60, seed=1) if mistake.command[0] in ("show", "check")]
    outcomes = [bench.attempt(mistake, bench.EXAMPLES, tmp_path / "here") for mistake in quick[:3]]
    assert [f"{each.mistake.name}: {each.faults}: {each.output}" for each in outcomes if each.faults] == []
    assert len(outcomes) == 3 and any(outcome.code for outcome in outcomes)


def test_the_same_seed_draws_the_same_mistakes_of_every_kind():
    one, again, other = (bench.mistakes(300, seed) for seed in (3, 3, 4))
    names = [[mistake.name for mistake in drawn] for drawn in (one, again, other)]
    assert names[0] == names[1] != names[2] and len(names[0]) == 300
    assert {mistake.command[0] for mistake in one} >= {"solve", "check", "diff", "show", "simulate", "execute"}
    assert {name.split(":")[0] for name in names[0]} >= {*bench.READERS, "show"}


ANSWERS = {
    "traceback": (1, "Traceback (most recent call last):\n"),
    "endless": (-24, ""),
    "killed": (-9, ""),
    "exit code": (77, ""),
    "not one line": (2, "error: one\nand what else to say of it"),
    "taken": (0, ""),
    "memory": (1, "error: the machine has too little memory"),
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_each_way_to_answer_a_mistake_badly_is_seen(fault, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "answer", lambda *_: ANSWERS[fault])
    (tmp_path / "ground").mkdir()
    outcome = bench.attempt(bench.Mistake("a test", SHOW, True), tmp_path / "ground", tmp_path / "here")
    assert fault in outcome.faults and not (tmp_path / "here").exists()


def test_what_a_refusal_writes_and_a_plan_that_check_rejects_are_seen(monkeypatch, tmp_path):
    def answered(code):
        def answer(arguments, folder, limit_s):
            (folder / "new.yaml").write_text("half")
            return (1, "decisions-edited") if arguments[0] == "check" else (code, "error: sorry" if code else "")

        return answer

    (tmp_path / "ground").mkdir()
    for code, fault in ((2, "written"), (0, "checked bad")):
        monkeypatch.setattr(bench, "answer", answered(code))
        mistake = bench.Mistake("a test", bench.SOLVE, False)
        assert bench.attempt(mistake, tmp_path / "ground", tmp_path / "here").faults == (fault,)


def test_the_way_has_the_commands_of_a_newcomer_for_three_jobs(tmp_path):
    for job in bench.JOBS:
        assert {words[0] for words in bench.commands(tmp_path, *job)} == {
            "init", "profile", "check", "lengths", "solve", "show", "diff", "simulate", "compare"
        }  # fmt: skip


def test_the_result_is_one_line_of_json_with_what_must_be_none(capsys):
    bench.main(["--mistakes", "0", "--skip-way", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert {found[key] for key in ("tracebacks", "endless", "solved_but_checked_bad", "taken_silently")} == {0}
