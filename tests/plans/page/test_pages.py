"""Pages as text: all that one of each kind shows is in golden/; everything in one file, nothing unescaped."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlplan import __version__
from rlplan.plans.page.chart_axes import axis, figure
from rlplan.plans.page.charts_many_runs import smoothed
from rlplan.plans.page.charts_plan import share_within
from rlplan.plans.page.elements import contrast, job_colours, run_colours, text_on
from rlplan.plans.page.page_of_compare import comparison_page
from rlplan.plans.page.page_of_groups import group_run_page, groups_page
from rlplan.plans.page.page_of_plan import plan_page
from rlplan.plans.page.page_of_run import run_page
from rlplan.plans.phrases.numbers import seconds
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.groups.group_journal import GROUPS_COPY
from rlplan.traces.groups.group_report import group_report
from rlplan.traces.report import report

from ...golden import compact, same_as_golden
from ...group_documents import group, groups_plan, member
from ...group_journals import journal_of
from ..conftest import GROUPS, PLAN_TEXT, plain, with_values
from .conftest import as_text, changed, payloads, points
from .runs import write_run

GOLDEN = Path(__file__).with_name("golden")
NOTES = ["solved from another <job>.yaml"]
KINDS = ("plan", "groups", "run", "compare", "audit")
STYLE, AXIS = json.loads(figure().to_json())["layout"], axis()


def shown(html):
    """What a page shows: its text, and of each chart traces and layout, one a line, without the style of all charts."""
    text = re.sub(
        r"<(style|script)>.*?</\1>", "", html.replace(f"rlplan {__version__}", "rlplan VERSION"), flags=re.DOTALL
    )
    lines = []
    for line in filter(str.strip, text.splitlines()):
        if chart := re.search(r'<script type="application/json">(.*?)</script>', line):
            drawn = json.loads(chart[1])
            hovers = [trace.get("hovertext") for trace in drawn["data"]]
            for trace, before in zip(drawn["data"], [None, *hovers], strict=False):
                trace |= {"hovertext": "as before"} if before and trace.get("hovertext") == before else {}
            lines += [line.replace(chart[1], "…"), *map(compact, drawn["data"])]
            layout = {key: value for key, value in drawn["layout"].items() if STYLE.get(key) != value}
            for name in ("xaxis", "yaxis"):
                layout[name] = {key: value for key, value in layout[name].items() if AXIS.get(key) != value}
            lines += [f"  {key}: {compact(value)}" for key, value in layout.items()]
        else:
            lines.append(line.strip())
    return lines


VALUES = yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())


@pytest.mark.parametrize(("name", "values"), VALUES["plan"].items())
def test_the_page_of_a_plan(name, values):
    plan = Plan.model_validate(with_values(plain(PLAN_TEXT), values))
    same_as_golden(shown(plan_page(plan, title="plan.yaml", notes=NOTES * bool(values))), GOLDEN / f"plan-{name}.txt")


@pytest.mark.parametrize(("name", "values"), VALUES["groups"].items())
def test_the_page_of_a_plan_of_groups(name, values):
    plan = GroupsPlan.model_validate(with_values(plain(GROUPS), values))
    page = groups_page(plan, title="groups.yaml", notes=NOTES * bool(values))
    same_as_golden(shown(page), GOLDEN / f"groups-{name}.txt")


@pytest.mark.filterwarnings("ignore:.*torn last line")
def test_the_page_of_runs(tmp_path):
    for name, mode, steps in (("plan", "exact", 5), ("killed", "race", 2), ("plain", "sync", 3), ("begun", "sync", 0)):
        write_run(tmp_path / name, PLAN_TEXT, mode, steps=steps, killed=name == "killed", full=name == "plan")
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "trace.jsonl").touch()
    found = report(tmp_path)
    found["unreadable"] = {name: Path(text).name for name, text in found["unreadable"].items()}
    found["runs"]["plan"]["limit"] = {
        "step_s": 0.3,
        "ratio": 0.25,
        "ratio_predicted": 0.3,
        "of_bandwidth": 0.4,
        "mfu": 0.2,
    }
    page = run_page(found, title="runs", written_at="2026-01-01 12:00:00 UTC")
    assert page == run_page(json.loads(json.dumps(found)), title="runs", written_at="2026-01-01 12:00:00 UTC")
    same_as_golden(shown(page), GOLDEN / "runs.txt")
    alone = report(tmp_path / "begun")
    same_as_golden(shown(run_page(alone, title="begun")), GOLDEN / "run-begun.txt")


def test_the_page_of_a_comparison(plan):
    same_as_golden(shown(comparison_page(points(plan), job="toy", title="compared")), GOLDEN / "compare.txt")
    larger = plan.model_copy(update={"job": plan.job.model_copy(update={"issue": plan.job.issue.model_copy(
        update={"prompts_per_step": 32})})})  # fmt: skip
    other = comparison_page([points(plan)[0], points(larger)[1]], job="toy", title="compared")
    assert "Steps are of different sizes here" in other and "2 of 2" in other and "the others say why" not in other


def test_the_page_of_groups_that_were_executed(tmp_path):
    plan = groups_plan({"g1": group({"a": member(slo=1.5), "b": member(slo=1.1)}), "g2": group(["c"])})
    dump(plan, tmp_path / GROUPS_COPY)
    factors = {"a": (1.25, 1.0), "b": (1.0, 2.0)}
    reports = {
        key: group_report(tmp_path, journal_of(key, planned, "multi_rate", factors, 30))
        for key, planned in plan.groups.items()
    }
    for each in reports.values():
        for row in each["jobs"].values():
            row["slowdown_planned_so_far"] = None if row["starts"] else 1.0
    reports["g1"]["jobs"]["a"]["switches"]["rollout"] |= {"turns": 2, "in_s": 0.5, "out_s": 0.25}
    reports["g2"]["left"] = {"d": {"steps": 3, "starts": 2}}
    moving = {"job": "d", "from_group": "g2", "to_group": None, "state": "made", "price_s": 90.0, "drain_s": 5.0}
    moves = {"plan": "new.yaml", "state": "under way", "moves": [moving]}
    page = group_run_page({"groups": reports, "moves": moves}, title="runs", written_at="2026-01-01")
    same_as_golden(shown(page), GOLDEN / "group-run.txt")
    none = {"c": {**reports["g2"]["jobs"]["c"], "slowdown": None, "keeps": None}}
    page = group_run_page({"groups": {"g2": reports["g2"] | {"jobs": none}}, "moves": None}, title="", written_at="")
    assert "1 job not measured" in page and "0 of 0" in page and "Moves to" not in as_text(page)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_one_document_that_fetches_nothing_and_tells_each_chart(kind, html):
    text = html[kind]
    assert text.count("Copyright 2012-") == 1 and text.count("<html") == 1
    body = as_text(text)
    assert re.findall(r"(?:src|href)=\"(?!data:,|#run-)", body) == [] and "@import" not in body and "url(" not in body
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", body, re.DOTALL)
    assert len(captions) == body.count("<figure") >= 3 and all(len(caption) > 30 for caption in captions)


def test_text_of_users_is_escaped_wherever_it_stands(plan):
    evil = "</script><script>alert(1)</script>"
    text = plan_page(changed(plan, step=evil), title=evil)
    assert evil not in text and "&lt;/script&gt;&lt;script&gt;alert(1)" in text


def test_thousands_of_steps_make_bars_of_several(tmp_path):
    home = write_run(tmp_path / "long", PLAN_TEXT, "exact", steps=2)
    lines = (home / "trace.jsonl").read_text().splitlines()
    first = next(json.loads(line) for line in lines if '"event": "step"' in line)
    steps = [json.dumps({**first, "step": number, "t_s": float(number)}) for number in range(1, 3001)]
    (home / "trace.jsonl").write_text("\n".join(steps) + "\n")
    page = run_page(report(home), title="long")
    body = as_text(page)
    assert "Each bar is the mean of 13 steps." in body and "3,000 steps" in body and len(body) < 1_500_000
    bars = next(
        f for f in payloads(page) if f["layout"]["xaxis"]["title"]["text"] == "step" and f["data"][0]["type"] == "bar"
    )
    assert len(bars["data"][0]["x"]) == 231 and bars["data"][0]["x"][:2] == [7.0, 20.0]
    assert bars["data"][0]["x"][-1] == 2995.5 and "step 2991 to 3000" in bars["data"][0]["hovertext"][-1]


def test_neither_help_nor_the_package_of_pages_loads_plotly():
    code = "import sys, rlplan.plans.page, rlplan.plans, rlplan.cli.main; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.strip() == "False"


def test_names_on_bars_and_their_colours_differ_enough_to_be_read():
    for colour in job_colours(map(str, range(10))).values():
        assert contrast(text_on(colour), colour) >= 4.5
    assert contrast("#000000", "#ffffff") == contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)
    colours = run_colours({"a": "exact", "b": "exact", "c": "odd", "d": "sync"})
    assert len(set(colours.values())) == 4


def test_the_axes_of_a_run_of_one_step_are_around_it(tmp_path):
    home = write_run(tmp_path / "one", PLAN_TEXT, "exact", steps=1)
    trace = home / "trace.jsonl"
    trace.write_text(trace.read_text().replace('"deferred": 0, "prompts"', '"deferred": 8, "prompts"'))
    found = report(home)
    html = run_page(found, title="one")
    layout = next(f["layout"] for f in payloads(html) if f["layout"]["yaxis"]["title"]["text"] == "mean reward")
    low, high = layout["yaxis"]["range"]
    assert low < 0.42 < high < low + 0.2 and layout["xaxis"]["range"] == [0.5, 1.5]
    expected = found["runs"]["one"]["step_s_expected"]
    assert 0 < expected < found["runs"]["one"]["step_s"]
    assert as_text(html).count(f"of which {seconds(expected)} are the plan&#39;s own long round: none ran yet") >= 2


def test_the_share_within_a_cutoff_lies_between_the_quantiles_around_it():
    lengths = (2, 2, 4, *range(10, 190, 10))
    assert share_within(lengths, 1) == 0.0 and share_within(lengths, 180) == share_within(lengths, 999) == 1.0
    assert share_within(lengths, 3) == pytest.approx(0.075) and share_within(lengths, 15) == pytest.approx(0.175)


def test_a_moving_mean_keeps_a_constant_and_the_number_of_values():
    assert smoothed([3.0] * 9, 4) == [3.0] * 9
    assert smoothed([0.0, 3.0, 6.0], 3) == [1.5, 3.0, 4.5]
    assert smoothed([0.0, None, 6.0, 6.0], 3) == [None, None, None, 6.0]
