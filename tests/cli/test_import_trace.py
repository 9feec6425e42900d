"""`rlplan import-trace` as a user meets it: what it finds, what it writes, and what report and tune make of that."""

import json
from pathlib import Path

import pytest

from rlplan.profiles.length_trace import read_lengths
from rlplan.traces.run_log import read_run

from .command_line import data, printed, rlplan
from .run_folders import run_plan

FILES = Path(__file__).parents[1] / "frameworks" / "logs" / "files"


@pytest.fixture
def plain(solved):
    """A folder with plan.yaml of plain rounds of 4 x 2."""
    printed("solve", solved, "--mode", "sync", "--bias-budget", 0)
    return solved


def write_as_slime(run, folder):
    """What slime would have logged and dumped of a run: its console log and a dump for each rollout."""
    torch = pytest.importorskip("torch")
    log, lines = read_run(run / "trace.jsonl"), []
    for step in log.steps:
        rows, rollout = list(log.samples[step.step]), step.step - 1
        seconds = {"perf/rollout_time": step.rollout_s, "rollout/response_len/mean": 1.0}
        trainer = {
            "perf/train_time": step.train_s,
            "perf/update_weights_time": step.sync_s,
            "perf/step_time": step.total_s,
        }
        lines += [f"[2026] x.py:1 - perf {rollout}: {part}" for part in (seconds, trainer)]
        samples = [
            {"group_index": 100 * rollout + row.draw, "prompt": row.prompt, "response_length": row.tokens,
             "tokens": [0] * (row.prompt_tokens + row.tokens), "status": "truncated" if row.truncated else "completed",
             "reward": row.reward}
            for row in rows
        ]  # fmt: skip
        (folder / "dumps").mkdir(parents=True, exist_ok=True)
        torch.save({"rollout_id": rollout, "samples": samples}, folder / "dumps" / f"rollout_{rollout}.pt")
    (folder / "slime.log").write_text("\n".join(lines))


def test_tune_learns_of_an_imported_run_what_the_run_itself_says(plain):
    run_plan(plain, "run", read_lengths(plain / "lengths.jsonl", cap_tokens=64), steps=30)
    write_as_slime(plain / "run", plain / "slime")
    sources = [plain / "slime" / name for name in ("slime.log", "dumps")]
    result = data("import-trace", *sources, "--plan", plain / "plan.yaml", "--run", plain / "again", "--cap", 64)
    assert (result["framework"], result["steps"], result["sources"][1]["samples"]) == ("slime", 30, 240)
    own, again = (data("tune", plain / name, "--out", plain / f"{name}.yaml") for name in ("run", "again"))
    for key in ("rollout", "train", "sync"):
        assert again["phases"][key]["measured"] == pytest.approx(own["phases"][key]["measured"], abs=0.002)
    assert again["step_s"] == pytest.approx(own["step_s"], rel=1e-6)
    assert again["factors"]["lengths"] == pytest.approx(own["factors"]["lengths"], rel=1e-3)
    assert again["factors"]["train"] == pytest.approx(own["factors"]["train"], rel=1e-3)
    text = printed("report", plain / "again")
    assert "imported from slime (console log, its dumps): 30 of 30 steps" in text
    trace = read_run(plain / "again" / "trace.jsonl").started
    assert trace["missing"] == ["seconds of rewards (part of the rollout or the rest)"]


def test_a_log_alone_is_a_run_for_report(plain):
    log = FILES / "verl_console.log"
    said = printed("import-trace", log, "--plan", plain / "plan.yaml", "--run", plain / "verl")
    assert "not in it: each response's length, median length" in said
    assert "a step trained 128 samples, and one of the plan 8" in said and "rlplan tune" not in said
    report = data("report", plain / "verl")["runs"]["verl"]
    assert report["phases_s"]["rollout"]["measured"] == pytest.approx(3.483, abs=0.001)
    assert report["max_over_median_tokens"] is None and report["decoded_tokens"] is None
    printed("report", plain / "verl", "--html", plain / "page.html")
    assert "imported from verl (console log)" in (plain / "page.html").read_text()
    refused = rlplan("tune", plain / "verl")
    assert refused.returncode == 2 and "holds no samples" in refused.stderr
    again = rlplan("import-trace", log, "--plan", plain / "plan.yaml", "--run", plain / "verl")
    assert again.returncode == 2 and "--force writes it anew" in again.stderr
    printed("import-trace", log, "--plan", plain / "plan.yaml", "--run", plain / "verl", "--force")


def test_dumps_become_a_length_trace_to_solve_with(plain):
    pytest.importorskip("torch")
    out = plain / "of-slime.jsonl"
    result = data("import-trace", FILES / "slime_dump", "--lengths", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 24 == result["summary"]["samples"] and result["summary"]["prompts"] == 8
    assert any("over-sampling" in text for text in result["cautions"])
    assert "seconds of steps and phases" in result["missing"]
    printed("solve", plain, "--trace", out, "-o", plain / "new.yaml")


def test_a_plain_table_is_read_as_lengths_import_reads_it(tmp_path):
    (tmp_path / "t.csv").write_text("id,response_tokens\na,3\na,9\nb,4\n")
    printed("import-trace", tmp_path / "t.csv", "--lengths", tmp_path / "a.jsonl")
    printed("lengths", "import", tmp_path / "t.csv", "-o", tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.log"], "no such file or folder"),
        (["empty"], "holds no dump of slime, verl or TRL"),
        (["verl.log", "--run", "r"], "--run needs the plan"),
        (["verl.log", "--lengths", "l.jsonl"], "it lacks each response's length"),
        (["verl.log", "trl.json"], "give the logs and dumps of one run"),
        (
            ["trl.json", "--plan", "plan.yaml", "--run", "r"],
            "has no seconds of the rollout and seconds of training; TRL",
        ),
        (["notes.txt"], "is no log of verl, slime or TRL, and as a table"),
        (["verl.log", "--plan", "plan.yaml", "--run", "empty/../full"], "is not empty; name a new folder"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(plain, arguments, message):
    for name, file in {"verl.log": "verl_console.log", "trl.json": "trl_trainer_state.json"}.items():
        (plain / name).write_bytes((FILES / file).read_bytes())
    (plain / "empty").mkdir()
    (plain / "full").mkdir()
    (plain / "full" / "mine").touch()
    (plain / "notes.txt").write_text("nothing\nto see\n")
    result = rlplan("import-trace", *arguments, folder=plain)
    assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (plain / "r").exists() and not (plain / "l.jsonl").exists()
