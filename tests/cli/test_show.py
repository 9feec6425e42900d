"""`rlplan show`: one screen that a reviewer needs no manual for, the same as data, and files for browsers."""

import json
import shutil
from pathlib import Path

import pytest

import rlplan as package
from rlplan.plans.schema.plan import load_plan

from .command_line import refused, rlplan
from .solved_folder import edit, listing

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"
JOBS = ("cpu-demo.yaml", "math-32b.yaml")
RAMP = "▁▂▃▄▅▆▇█"


def screen(monkeypatch, plan, width=100):
    monkeypatch.setenv("COLUMNS", str(width))
    result = rlplan("show", plan)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", [*JOBS, "groups.yaml"])
def test_nothing_is_wider_than_the_terminal(monkeypatch, name, width):
    lines = screen(monkeypatch, EXAMPLES / name, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("name", JOBS)
def test_a_plan_of_one_job_is_one_screen_that_begins_with_what_it_gains_and_how_sure_that_is(monkeypatch, name):
    lines = screen(monkeypatch, EXAMPLES / name)
    assert len(lines) <= 64
    p = load_plan(EXAMPLES / name).predicted
    assert (
        f"{p.baseline.seconds_per_sample / p.seconds_per_sample:.2f}x plain synchronous rounds" in lines[0]
        and "±" in lines[0]
    )
    for word in ("USD/h", "USD per 1000 samples", "length ratio", "bias budget"):
        assert word in lines[1]
    for word in ("of ", "schedules, gap 0.00%", "costs "):
        assert word in lines[2]


def test_costs_that_nobody_measured_are_called_so(monkeypatch):
    assert "costs derived, not measured" in screen(monkeypatch, EXAMPLES / "math-32b.yaml")[2]
    assert "not measured" not in screen(monkeypatch, EXAMPLES / "cpu-demo.yaml")[2]


def test_rounds_seconds_path_memory_front_lengths_and_reasons_are_on_the_screen(monkeypatch):
    text = "\n".join(screen(monkeypatch, EXAMPLES / "math-32b.yaml"))
    for word in (
        "cutoff", "engines", "trainers", "short round", "long round", "all steps", "plain rounds", "(p95 ",
        "critical path  weight transfer ", "→ training ", "memory", "KV", "trainer", "host", "speed-up",
        " s for the scores of all samples but those decoded last; none for the rest",
        "* exact", "lengths  ", "log scale", "next best", "bias.mode: ",
    ):  # fmt: skip
        assert word in text, word


def test_the_engines_lane_falls_where_sequences_end(monkeypatch):
    lines = screen(monkeypatch, EXAMPLES / "cpu-demo.yaml", 80)
    [short, long] = [line[10:-6].strip() for line in lines if line.startswith("engines")]
    for lane in (short, long):
        heights = [RAMP.index(character) for character in lane.split()[0]]
        assert len(heights) > 20 and heights[0] >= 6 and heights[-1] <= 1
    assert heights == sorted(heights, reverse=True) or max(heights[10:]) < max(heights[:10]) + 2


def test_everything_is_data_too(monkeypatch):
    result = json.loads(rlplan("show", EXAMPLES / "cpu-demo.yaml", "--json").stdout)
    plan = load_plan(EXAMPLES / "cpu-demo.yaml")
    assert result["mode"] == plan.job.bias.mode and result["speedup"] > 1 and result["notes"] == []
    assert result["predicted"] == plan.predicted.model_dump(mode="json")
    assert result["decisions"]["rounds"] == plan.job.rounds.model_dump(mode="json")
    assert result["why"] == plan.job.why and result["error"] == plan.predicted.error.total
    assert {bar["kind"] for bar in result["bars"]} == {"short", "long"}
    assert result["critical_path"]["total_s"] == pytest.approx(plan.predicted.step_s.mean, rel=1e-4)
    assert sum(step["share"] for step in result["critical_path"]["steps"]) == pytest.approx(1)


def test_a_synchronous_plan_has_one_kind_of_round(monkeypatch, solved):
    lines = screen(monkeypatch, solved / "plan.yaml")
    assert lines[0].startswith("toy: sync, ") and "1.00x plain synchronous rounds" in lines[0]
    assert any(line.startswith("mean round ") for line in lines)
    assert not any("long round" in line or "all steps" in line for line in lines)


def test_inputs_that_have_changed_or_are_gone_are_named_in_one_line_and_do_not_matter(monkeypatch, solved, tmp_path):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    lines = screen(monkeypatch, solved / "plan.yaml")
    assert lines[3] == "note: solved from another job.yaml; solve again before you run it"
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(solved / "plan.yaml", alone)
    [note] = [line for line in screen(monkeypatch, alone / "plan.yaml") if line.startswith("note: ")]
    assert note == "note: not here: cluster.yaml, job.yaml, profile.yaml, lengths.jsonl"
    notes = json.loads(rlplan("show", alone / "plan.yaml", "--json").stdout)["notes"]
    assert notes == ["not here: cluster.yaml, job.yaml, profile.yaml, lengths.jsonl"]


def test_a_plan_that_was_edited_says_that_its_predictions_are_of_another(monkeypatch, solved):
    edit(solved / "plan.yaml", "max_num_seqs: 4", "max_num_seqs: 3")
    assert any("decisions were edited" in line for line in screen(monkeypatch, solved / "plan.yaml"))


def test_a_terminal_without_unicode_gets_plain_characters(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for name in (*JOBS, "groups.yaml"):
        result = rlplan("show", EXAMPLES / name)
        assert result.returncode == 0 and result.stdout.isascii(), result.stderr
    assert "+-" in rlplan("show", EXAMPLES / JOBS[0]).stdout


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_timeline_of_one_job_is_that_of_simulate(solved, tmp_path):
    shown = rlplan("show", solved / "plan.yaml", "--timeline", tmp_path / "a.json", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["timeline"] == str(tmp_path / "a.json")
    assert rlplan("simulate", solved / "plan.yaml", "--timeline", tmp_path / "b.json").returncode == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize("name", ["cpu-demo.yaml", "groups.yaml"])
def test_a_page_is_written_beside_the_screen(name, tmp_path):
    pytest.importorskip("rlplan.plans.page")
    result = rlplan("show", EXAMPLES / name, "--html", tmp_path / "page.html", "--timeline", tmp_path / "t.json")
    assert result.returncode == 0, result.stderr
    assert "open it in a browser" in result.stdout and "ui.perfetto.dev" in result.stdout
    assert "<html" in (tmp_path / "page.html").read_text()[:1000].lower()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


FAULTS = {
    "no plan": (("{job}/job.yaml",), ("job.yaml:1", "a plan ('rlplan') is needed")),
    "no file": (("{job}/none.yaml",), ("no such file",)),
    "a timeline over an input": (("{job}/plan.yaml", "--timeline", "{job}/job.yaml"), ("is an input of this command",)),
    "a page over the plan": (("{job}/plan.yaml", "--html", "{job}/plan.yaml"), ("is an input of this command",)),
    "a page nowhere": (("{job}/plan.yaml", "--html", "{job}/none/p.html"), ("folder does not exist",)),
    "one file for both": (("{job}/plan.yaml", "--html", "{job}/x", "--timeline", "{job}/x"), ("name two",)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_one_line_with_nothing_written(fault, solved):
    arguments, words = FAULTS[fault]
    before = listing(solved)
    refused(rlplan("show", *(argument.replace("{job}", str(solved)) for argument in arguments)), *words)
    assert listing(solved) == before


def test_a_timeline_without_inputs_is_refused_in_one_line_that_says_what_to_do(solved):
    (solved / "profile.yaml").unlink()
    refused(
        rlplan("show", solved / "plan.yaml", "--timeline", solved / "t.json"),
        "profile.yaml", "no such file", "put the file back, or leave --timeline out",
    )  # fmt: skip
    assert not (solved / "t.json").exists()


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_plan_of_groups_begins_with_what_it_saves_and_the_bound_that_is_nearest(monkeypatch):
    lines = screen(monkeypatch, EXAMPLES / "groups.yaml", 120)
    text = "\n".join(lines)
    assert lines[0].startswith("5 jobs in 2 groups: ") and "less than each job alone" in lines[0]
    data = json.loads(rlplan("show", EXAMPLES / "groups.yaml", "--json").stdout)
    nearest = min(data["slack"], key=lambda name: data["slack"][name]["p95_slack"])
    assert f"every bound is kept; {nearest} in {data['slack'][nearest]['group']} is nearest to its bound" in text
    assert text.count("critical cycle: ") == len(data["groups"]) and "binds" in text
    for name, job in data["slack"].items():
        member = data["detail"][job["group"]]["jobs"][name]
        assert job["p95_slack"] == pytest.approx(1 - member["slowdown"]["p95"] / job["at_most"])


def test_a_bound_that_breaks_is_the_verdict(monkeypatch, tmp_path):
    text = (EXAMPLES / "groups.yaml").read_text()
    (tmp_path / "groups.yaml").write_text(text.replace("keeps: true", "keeps: false", 1))
    lines = screen(monkeypatch, tmp_path / "groups.yaml")
    assert any(line.startswith("bounds broken: ") for line in lines[:5])
    assert any(line.rstrip().endswith(("breaks", "breaks  70%")) or " breaks" in line for line in lines[5:])
