"""Pages as text: the same bytes each time, everything in one file, each chart told in words, nothing unescaped."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from rlplan.plans.page import comparison_page, groups_page, plan_page, run_page
from rlplan.plans.page.charts.charts_many_runs import smoothed
from rlplan.plans.page.charts.charts_plan import share_within
from rlplan.plans.page.palette import contrast, job_colours, text_on
from rlplan.plans.phrases.numbers import seconds
from rlplan.traces.report import report

from .conftest import as_text, changed, payloads, points
from .runs import write_run

NOTES = ["solved from another <job>.yaml"]
KINDS = ("plan", "groups", "run", "compare")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_one_document_with_plotly_once_and_no_address_to_fetch_from(kind, html):
    text = html[kind]
    assert text.count("Copyright 2012-") == 1 and text.count("<html") == 1
    body = as_text(text)
    assert re.findall(r"(?:src|href)=\"(?!data:,)", body) == [] and "@import" not in body and "url(" not in body


def test_the_same_plan_gives_the_same_bytes(plan, groups, html):
    assert html["plan"] == plan_page(plan, title="plan.yaml")
    assert html["groups"] == groups_page(groups, title="groups.yaml")


def test_the_same_report_gives_the_same_bytes(runs):
    found = report(runs)
    assert run_page(found, title="runs") == run_page(json.loads(json.dumps(found)), title="runs")


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_has_a_caption_of_its_own(kind, html):
    body = as_text(html[kind])
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", body, re.DOTALL)
    assert len(captions) == body.count("<figure") >= 3
    assert all(len(caption) > 30 for caption in captions)


def test_text_of_users_is_escaped_wherever_it_stands(plan):
    evil = "</script><script>alert(1)</script>"
    text = plan_page(changed(plan, step=evil), title=evil)
    assert evil not in text and "&lt;/script&gt;&lt;script&gt;alert(1)" in text


def test_a_plan_that_was_edited_says_so_and_one_that_was_not_does_not(plan):
    assert "Edited since it was solved" not in plan_page(plan, title="a")
    short = plan.job.rounds.short.model_copy(update={"cutoff_tokens": 100})
    job = plan.job.model_copy(update={"rounds": plan.job.rounds.model_copy(update={"short": short})})
    edited = plan.model_copy(update={"job": job})
    assert "Edited since it was solved" in plan_page(edited, title="a")


def test_a_run_that_was_killed_and_one_that_never_came_to_a_step_are_told_so(plan_text, tmp_path):
    write_run(tmp_path / "runs" / "a", plan_text, "exact", steps=3, killed=True)
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "plan.yaml").write_text(plan_text)
    (tmp_path / "runs" / "b" / "trace.jsonl").write_text('{"event":"run","t_s":1.0,"steps":40}\n{"event":"chec')
    with pytest.warns(UserWarning, match="torn last line"):
        body = as_text(run_page(report(tmp_path / "runs"), title="runs"))
    assert "a: running or died: 3 of 40 steps" in body
    assert "b: running or died: no step was finished of 40" in body and "Only its plan&#39;s predictions" in body


def test_thousands_of_steps_make_bars_of_several_and_not_a_page_that_no_browser_opens(plan_text, tmp_path):
    home = write_run(tmp_path / "long", plan_text, "exact", steps=2)
    lines = (home / "trace.jsonl").read_text().splitlines()
    first = next(json.loads(line) for line in lines if '"event": "step"' in line)
    steps = [json.dumps({**first, "step": number, "t_s": float(number)}) for number in range(1, 3001)]
    (home / "trace.jsonl").write_text("\n".join(steps) + "\n")
    body = as_text(run_page(report(home), title="long"))
    assert "Each bar is the mean of 13 steps." in body and "3,000 steps" in body
    assert len(body) < 1_500_000


def test_neither_help_nor_the_package_of_pages_loads_plotly():
    code = "import sys, rlplan.plans.page, rlplan.plans, rlplan.cli.main; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.strip() == "False"


def test_what_is_stale_is_told_on_the_page_of_a_plan_and_of_groups(plan, groups, html):
    pages = {"plan": plan_page(plan, title="a", notes=NOTES), "groups": groups_page(groups, title="a", notes=NOTES)}
    for kind, page in pages.items():
        assert '<p class="banner warn">Solved from another &lt;job&gt;.yaml.</p>' in page
        assert 'class="banner' not in as_text(html[kind]).replace('class="banner info"', "")


def test_a_point_of_the_front_is_rough_below_32_rounds_unless_it_is_the_plan(plan):
    [point, *_] = plan.predicted.front
    found = [
        point.model_copy(update={"rounds": rounds, "chosen": chosen}).rough
        for rounds, chosen in ((31, False), (32, False), (31, True))
    ]
    assert found == [True, False, False]


def test_scoring_is_not_said_to_have_time_where_the_step_waits_for_it(html):
    assert "scoring could" not in html["plan"] and "longer, except for the samples decoded last, and" in html["plan"]


def test_names_on_bars_and_their_colours_differ_enough_to_be_read(html):
    for colour in job_colours(map(str, range(10))).values():
        assert contrast(text_on(colour), colour) >= 4.5
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    bars = [t for figure in payloads(html["groups"]) for t in figure["data"] if t.get("text") == ["big"]]
    assert bars and all(contrast(t["textfont"]["color"], t["marker"]["color"]) >= 4.5 for t in bars)


def test_a_bound_of_some_groups_is_not_taken_for_one_of_all_schedules(html):
    legend = re.findall(r'<i class="(\w+)"[^>]*></i>([^<]*)', html["groups"])
    assert ("dash", "lower bound of groups of at most 5 jobs: 50.00 USD/h") in legend
    assert ("dots", "lower bound of any schedule at all: 41.50 USD/h") in legend


def test_the_axes_of_a_run_of_one_step_are_around_it_and_what_of_it_was_expected_is_told(plan_text, tmp_path):
    home = write_run(tmp_path / "one", plan_text, "exact", steps=1)
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


def test_the_text_of_a_cutoff_stands_above_the_curves(plan):
    html = plan_page(plan, title="a")
    [layout] = [f["layout"] for f in payloads(html) if f["layout"]["xaxis"]["title"]["text"] == "response tokens"]
    [text] = layout["annotations"]
    assert (text["y"], text["yref"], text["yanchor"]) == (1, "paper", "bottom") and layout["margin"]["t"] >= 30


def test_the_share_within_a_cutoff_lies_between_the_quantiles_around_it():
    lengths = (2, 2, 4, *range(10, 190, 10))
    assert len(lengths) == 21
    assert share_within(lengths, 1) == 0.0 and share_within(lengths, 180) == share_within(lengths, 999) == 1.0
    assert share_within(lengths, 3) == pytest.approx(0.075)
    assert share_within(lengths, 15) == pytest.approx(0.175)


def test_a_moving_mean_keeps_a_constant_and_the_number_of_values():
    assert smoothed([3.0] * 9, 4) == [3.0] * 9
    assert smoothed([0.0, 3.0, 6.0], 3) == [1.5, 3.0, 4.5]
    assert smoothed([0.0, None, 6.0, 6.0], 3) == [None, None, None, 6.0]


def test_a_comparison_names_the_fastest_the_cheapest_what_binds_and_why_a_point_has_no_plan(plan, html):
    body = as_text(html["compare"])
    assert html["compare"] == comparison_page(points(plan), job="toy", title="3 plans compared")
    assert "2 of 3" in body and "nodes 4" in body and "of the step" in body
    assert "8 prompts &lt;and&gt; a step trains 16" in body
    assert "nodes 4: The length trace holds few samples." in body
    rows = re.findall(r"<tr>.*?</tr>", body)
    assert "<b>cheapest</b>" in rows[1] and "<b>fastest</b>" in rows[2] and "no plan" in rows[3]


def test_what_drafts_gave_is_a_chart_of_the_run_that_had_some(plan_text, tmp_path):
    home = write_run(tmp_path / "a", plan_text, "exact", steps=2)
    batch = {"plain_s": 0.02, "drafted_s": 0.03, "emitted": 2.0, "verified": 9, "saved_s": 0.09}
    event = {
        "event": "drafts", "t_s": 2.0, "kind": "short", "steps": 9, "sequence_steps": 20, "drafted_at": [9, 5],
        "accepted_at": [8, 1], "by_source": {"own": 4, "earlier<b>": 5}, "batches": {"3": batch},
        "index_bytes": 5000, "history_bytes": 700,
    }  # fmt: skip
    before = as_text(run_page(report(home), title="a"))
    with (home / "trace.jsonl").open("a") as trace:
        for number in (1, 2):
            trace.write(json.dumps({**event, "step": number, "epoch": number}) + "\n")
    body = as_text(run_page(report(home), title="a"))
    assert "a: drafts" in body and "a: drafts" not in before
    assert "a step gave a sample 0.450 tokens more than one" in body and "89% and 20% were accepted" in body
    assert "Drafts saved 90 ms of engine time a round." in body and "earlier<b>" not in body
