"""`rlplan show`: one screen that a reviewer needs no manual for, the same as data, and files for browsers."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rlplan.cli.screens.groups_screen import costs_text, groups_text
from rlplan.cli.screens.groups_screen import render as groups_render
from rlplan.cli.screens.job_screen import data as data_of
from rlplan.cli.screens.job_screen import front_table, render, why_table
from rlplan.cli.screens.solved import plan_summary, plan_text
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.solve import solve
from rlplan.plans.page import page_of_groups
from rlplan.plans.schema.plan import load_plan

from ..golden import flat, same_as_golden
from ..group_documents import group, groups_plan, member
from ..planner.check.edits import edit as edit_keys
from ..planner.check.edits import resign
from ..planner.conftest import laptop
from ..planner.synthetic_run import QUICK
from ..planner.synthetic_run import solved as documents_of
from ..plans.strategies import plans, relaxed
from .command_line import data, printed, rlplan
from .conftest import EXAMPLES
from .solved_folder import edit, write_profiled

JOBS = ("cpu-demo.yaml", "math-32b.yaml")
GOLDEN = Path(__file__).with_name("golden")


def screen(monkeypatch, plan, width=100):
    monkeypatch.setenv("COLUMNS", str(width))
    result = rlplan("show", plan)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("name", [*JOBS, "groups.yaml"])
def test_a_screen_is_as_wide_as_the_terminal_and_not_long(monkeypatch, name):
    for width in (80, 100, 120):
        lines = screen(monkeypatch, EXAMPLES / name, width)
        assert max(map(len, lines)) <= width and "…" not in "".join(lines)
    assert len(lines) <= 64


def test_everything_is_data_too():
    result = data("show", EXAMPLES / "cpu-demo.yaml")
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
    assert lines[0].startswith("toy: sync, ") and "1.00x the samples per second of plain rounds" in lines[0]
    assert any(line.startswith("mean round ") for line in lines)
    assert not any("long round" in line or "all steps" in line for line in lines)


def test_inputs_that_changed_or_are_gone_are_named(monkeypatch, solved, tmp_path):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    lines = screen(monkeypatch, solved / "plan.yaml")
    assert lines[4] == "note: solved from another job.yaml; solve again before you run it"
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(solved / "plan.yaml", alone)
    said = "not here: cluster.yaml, job.yaml, profile.yaml, lengths.jsonl"
    notes = [line for line in screen(monkeypatch, alone / "plan.yaml") if line.startswith("note: ")]
    assert notes == [f"note: {said}"] and data("show", alone / "plan.yaml")["notes"] == [said]


def test_a_plan_that_was_edited_says_so(monkeypatch, solved):
    plan = solved / "plan.yaml"
    assert "edited" not in printed("show", plan)
    text = plan.read_text()
    [seconds] = [line for line in text.splitlines() if line.startswith("  seconds_per_sample: ")]
    plan.write_text(text.replace(seconds, "  seconds_per_sample: 0.000001"))
    said = "note: its predictions were edited since it was solved; do not trust them: rlplan refresh"
    assert said in screen(monkeypatch, plan)
    assert "predictions-edited" in {f["rule"] for f in data("check", plan, code=1)["files"][0]["findings"]}
    plan.write_text(text)
    edit(plan, "max_num_seqs: 4", "max_num_seqs: 3")
    assert any("its decisions were edited since it was solved" in line for line in screen(monkeypatch, plan))


def test_a_terminal_without_unicode_gets_plain_characters(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    for name in (*JOBS, "groups.yaml"):
        assert printed("show", EXAMPLES / name).isascii()
    assert "+-" in printed("show", EXAMPLES / JOBS[0])


def any_plan_is_drawn(plan, width):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(render(plan, "plan.yaml", [], width))
    text = out.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert plan.job.name in text.replace("\n", "")
    assert text.count("trainers  ") >= (1 if plan.job.rounds.long is None else 2)
    found = data_of(plan, EXAMPLES / "plan.yaml")
    assert found["critical_path"]["total_s"] == pytest.approx(sum(found["predicted"]["phases_s"].values()))
    assert found["why"] == plan.job.why


WIDTHS = st.sampled_from([40, 80, 100, 120])


@settings(relaxed, max_examples=5)
@given(plans(), WIDTHS)
def test_some_plans_are_drawn_and_do_nothing_to_the_terminal(plan, width):
    any_plan_is_drawn(plan, width)


@pytest.mark.search
@settings(relaxed, max_examples=200)
@given(plans(), WIDTHS)
def test_any_plan_is_drawn_and_does_nothing_to_the_terminal(plan, width):
    any_plan_is_drawn(plan, width)


def test_what_solve_prints_of_a_plan_follows_its_figures(pipeline):
    lines = []
    for path in (EXAMPLES / "cpu-demo.yaml", EXAMPLES / "math-32b.yaml", pipeline / "plan.yaml"):
        plan, out = load_plan(path), Path(path.name)
        given = plan_text(plan, path).replace(str(path), path.name)
        lines += [
            *given.splitlines(),
            *flat(plan_summary(plan, path) | {"plan": out.name, "front": None, "solved_at": None, "solve_s": None}),
            "",
        ]
    same_as_golden(lines, GOLDEN / "solved.txt")


def test_the_front_is_thinned_and_reasons_are_cut():
    plan = load_plan(EXAMPLES / "cpu-demo.yaml")
    point = plan.predicted.front[0]
    front = tuple(point.model_copy(update={"chosen": n == 3, "usd_per_1k_samples": n + 1.0}) for n in range(9))
    line = "cutoff 112 tokens; next best: cutoff 64 tokens, +0.9% time per sample, the rest chosen anew (rollout +1.0%)"
    why = {f"rounds.short.k{n}": line.replace("+0.9%", f"+{n}.5%") for n in range(1, 9)}
    why |= {f"other{n}": f"text {n}" for n in range(8)} | {f"refused.{n}": f"no {n}" for n in range(2)}
    plan = plan.model_copy(
        update={
            "predicted": plan.predicted.model_copy(update={"front": front}),
            "job": plan.job.model_copy(update={"why": why}),
        }
    )
    out = io.StringIO()
    for wide in (True, False):
        Console(file=out, width=120, color_system=None).print(front_table(plan), *why_table(plan, wide), sep="\n")
    same_as_golden(out.getvalue().splitlines(), GOLDEN / "alternatives.txt")


def test_memory_that_does_not_hold_a_plan_is_noted_with_its_table(impossible):
    plan = impossible / "plan.yaml"
    shown = data("show", plan)
    assert any("memory does not hold it" in note and "while trainers train" in note for note in shown["notes"])
    bars = {(bar["round"], bar["place"], bar["phase"]): bar for bar in shown["memory"]}
    assert len(bars) == 12 and {round_ for round_, _, _ in bars} == {"short", "long"}
    training = bars["short", "device", "train"]
    assert training["needed_bytes"] == pytest.approx(sum(training["holds_bytes"].values()))
    assert training["needed_bytes"] > 2 * training["capacity_bytes"]
    on_host = [bar["needed_bytes"] for (_, place, _), bar in bars.items() if place == "host"]
    assert max(on_host) == pytest.approx(shown["predicted"]["host_memory"]["needed_bytes"], rel=0.5)
    shutil.copy(EXAMPLES / "math-32b.yaml", plan)
    tail, engines = {"engines": 8, "tp": 8, "at_finished": 0.9}, {"engines": 32, "tp": 2}
    edit_keys(plan, {"job.rounds.long.rollout": lambda old: {**old, **engines}, "job.rounds.long.tail": tail})
    resign(impossible)
    assert "8 x tp 8 at 90%" in printed("show", plan)
    assert {bar["round"] for bar in data("show", plan)["memory"]} == {"short", "long", "tail"}
    edit_keys(plan, {"job.rounds.long.rollout.tp": 16, "job.rounds.long.tail": None})
    assert data("show", plan)["memory"] is None, "the profile has no such engines"


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_timeline_of_one_job_is_that_of_simulate(solved, tmp_path):
    out = tmp_path / "a.json"
    assert data("show", solved / "plan.yaml", "--timeline", out)["timeline"] == str(out)
    printed("simulate", solved / "plan.yaml", "--timeline", tmp_path / "b.json")
    assert out.read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(("name", "given"), [("cpu-demo", "cluster.yaml"), ("groups", "workload.yaml")])
def test_a_page_says_whether_the_plan_is_stale(name, given, tmp_path):
    shutil.copy(EXAMPLES / f"{name}.yaml", tmp_path)
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    page, timeline = tmp_path / "page.html", tmp_path / "t.json"
    text = printed("show", tmp_path / f"{name}.yaml", "--html", page, "--timeline", timeline)
    assert text.endswith(f"timeline: {timeline}; open it in ui.perfetto.dev\nhtml: {page}; open it in a browser\n")
    said = f"Solved from another {name}/{given}; solve again"
    assert "<html" in page.read_text()[:1000].lower() and said not in page.read_text()
    assert json.loads(timeline.read_text())["traceEvents"]
    file = tmp_path / name / given
    file.write_text(re.sub(r"(usd_per_node_hour|slo): ([0-9.]+)", r"\1: \g<2>1", file.read_text()))
    printed("show", tmp_path / f"{name}.yaml", "--html", page)
    assert said in page.read_text()


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_plan_of_groups_begins_with_savings_and_the_nearest_bound(monkeypatch):
    lines = screen(monkeypatch, EXAMPLES / "groups.yaml", 120)
    text = "\n".join(lines)
    assert lines[0].startswith("5 jobs in 2 groups: ") and "less than each job alone" in lines[0]
    found = data("show", EXAMPLES / "groups.yaml")
    nearest = min(found["slack"], key=lambda name: found["slack"][name]["p95_slack"])
    assert f"every bound is kept; {nearest} in {found['slack'][nearest]['group']} is nearest to its bound" in text
    assert text.count("\npace ") == len(found["groups"])
    for name, job in found["slack"].items():
        member = found["detail"][job["group"]]["jobs"][name]
        assert job["p95_slack"] == pytest.approx(1 - member["slowdown"]["p95"] / job["at_most"])


def test_screen_and_page_name_the_same_nearest_bound():
    """big has the smaller share of its limit left, small the smaller distance to it."""
    old_why = {"why": {"slack": "small is nearest to its bound: 1.040 (p95) of 1.100"}}
    plan = groups_plan({"g1": group({"big": member(2.0, 2.9, 3.0), "small": member(1.0, 1.04, 1.1)}) | old_why})
    screen = io.StringIO()
    Console(file=screen, width=300).print(groups_render(plan, "groups.yaml", [], 300))
    page = page_of_groups.groups_page(plan, title="groups")
    said = "very bound is kept; big in g1 is nearest to its bound: its p95 slowdown of 2.900x is 3.3% below its limit"
    assert screen.getvalue().count(said) == 1 and page.count(said) == 3, "a card, a chart's caption and its label"
    assert "small is nearest" not in screen.getvalue() + page


def test_a_bound_that_breaks_is_the_verdict(monkeypatch, tmp_path):
    text = (EXAMPLES / "groups.yaml").read_text()
    (tmp_path / "groups.yaml").write_text(text.replace("keeps: true", "keeps: false", 1))
    lines = screen(monkeypatch, tmp_path / "groups.yaml")
    assert any(line.startswith("bounds broken: ") for line in lines[:5])
    assert any(" breaks" in line for line in lines[5:])


def test_groups_are_drawn_with_turns_bounds_and_moves():
    kept = {"slowdown": {**member(1.0, 1.049, 1.0)["slowdown"], "keeps": True}}
    move = {"from_group": "g0", "to_group": "g1", "price_usd": 2.5, "price_s": 90.0, "together": 1}
    plan = groups_plan(
        {
            "g1": group({"big": member(), "small": member()}) | {"why": {"pace": "x\ny"}},
            "g2": group({"alone": member(1.0, 1.049, 1.0) | kept}, roll_nodes=2),
        },
        rules={"margin": 0.2, "quantile": 0.9},
        moves=[
            {**move, "job": "big", "saves_usd_per_hour": 4.0, "needed": False},
            {**move, "job": "small", "saves_usd_per_hour": 0.0, "needed": True},
            {**move, "job": "alone", "to_group": "g2", "saves_usd_per_hour": 1.0, "needed": True, "together": 2},
        ],
    )
    predicted = plan.predicted
    dearer, cheaper = (
        predicted.plan.model_copy(update={"usd_per_hour": usd, "fits": fits})
        for usd, fits in ((220.0, False), (55.0, True))
    )
    updates = {"predicted": predicted.model_copy(update={"solo_d": dearer, "algorithm_1": cheaper})}
    broken = groups_plan(
        {"g1": group({"big": member(), "small": member(1.1, 1.7)})},
        declined={"jobs": ["big"], "reason": "bounds", "saves_usd_per_hour": 5.0, "hours": 2.0, "price_usd": 3.0},
    )
    open_ = broken.solver.model_copy(update={"gap": None})
    limited = broken.solver.model_copy(update={"status": "limit", "gap": 0.125, "universe": "groups of 2"})
    lines = []
    for each in (
        plan.model_copy(update=updates),
        groups_plan({"g1": group(["big"])}).model_copy(update={"solver": open_}),
        broken.model_copy(update={"solver": limited}),
    ):
        out = io.StringIO()
        Console(file=out, width=120, color_system=None).print(groups_render(each, "groups.yaml", ["stale"], 120))
        lines += [*out.getvalue().splitlines(), "-- in lines", *costs_text(each).splitlines(), *groups_text(each), ""]
    same_as_golden(lines, GOLDEN / "groups_screen.txt")


# -- words -------------------------------------------------------------------------------------------------------------

RIDDLES = ("slack: all scores", "all scores but the last", "if forced by its name", "plain sync ", "x sync",
           "reward exposed")  # fmt: skip


def test_one_word_stands_for_one_thing_and_none_is_a_riddle(tmp_path, monkeypatch):
    """Sync is the name of a mode; the phase is the weight transfer, the baseline are plain rounds."""
    monkeypatch.setenv("COLUMNS", "200")
    write_profiled(tmp_path)
    for mode in ("sync", "exact"):
        printed("solve", tmp_path, "--mode", mode, "--out", tmp_path / f"{mode}.yaml")
    exact, sync = tmp_path / "exact.yaml", tmp_path / "sync.yaml"
    told = {command: printed(*command) for command in (("show", exact), ("show", sync), ("diff", exact, sync))}
    told |= {("why", path): "\n".join(load_plan(path).job.why.values()) for path in (exact, sync)}
    for command, text in told.items():
        assert [riddle for riddle in RIDDLES if riddle in text] == [], command
        if sync in command:
            # The mode of this plan is on its screen; take its own names out.
            text = re.sub(r"(toy: |bias\.mode|\* |mode |by mode |`)sync\b", "", text).replace("sync.yaml", "")
            text = re.sub(r"exact -> sync|sync -> exact|(exact|sync) +(exact|sync)", "", text)
        assert re.findall(r"(?<![\w.])sync\b(?!\.\w)", text) == [], (command, text)
    assert "weight transfer" in told["show", exact] and "plain rounds" in told["show", exact]
    for pair in ((exact, sync), (sync, exact)):
        [line] = [line for line in printed("diff", *pair).splitlines() if "long round, mean" in line]
        assert "none" in line and "unknown" not in line, line


def test_an_alternative_on_more_nodes_says_that_it_takes_them():
    base = documents_of(mode="sync")
    # The other update there is takes four accelerators, of which a node has two.
    update = base.profile.train[1]
    profile = base.profile.model_copy(update={"train": (update, update.model_copy(update={"dp": 4}))})
    options = SolveOptions(passes=QUICK, mode="sync", objective="usd")
    plan = solve(laptop(nodes=2), base.job, profile, base.trace, base.plan.inputs, options).plan
    text = plan.job.why["rounds.short.train"]
    assert plan.predicted.nodes == 1 and "dp 4" in text.partition("next best: ")[2]
    assert text.endswith("% cost per sample, the rest kept (takes 2 nodes instead of 1)")
    assert float(re.search(r"\+([\d.]+)% cost", text)[1]) > 80
