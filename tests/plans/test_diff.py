"""The difference of two plans: golden/diff-*.txt has what a reviewer sees of each change, both ways."""

import json
import math
import random
import statistics
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rlplan.cli.diff import render
from rlplan.plans.diff.change import NOT_GIVEN, Quantity, change_text, changes, delta_text, value_text, values
from rlplan.plans.diff.difference_error import Errors
from rlplan.plans.diff.groups_diff import diff_groups
from rlplan.plans.diff.groups_report import groups_report, groups_verdict, one_groups_report
from rlplan.plans.diff.input_diff import InputFiles
from rlplan.plans.diff.job_diff import NO_FILES, Repriced, diff_jobs, why_of
from rlplan.plans.diff.job_report import job_report, job_verdict, job_warnings, one_job_report
from rlplan.plans.diff.review import MAX_LINES, Report, code, escape, fold, markdown, one_plan_dict
from rlplan.plans.facts.digest import job_decisions, job_predictions, solver_read
from rlplan.plans.phrases.tables import Row, Table, TableColumn
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.predicted import PredictedError
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump, loads, sha256_file

from ..golden import cases_in, compact, flat, same_as_golden
from ..group_documents import group, groups_plan, groups_plans, member, pinned
from .conftest import PLAN_TEXT, plain, with_values
from .strategies import plans, relaxed

GOLDEN = Path(__file__).with_name("golden")
S, L, P = "job.rounds.short.", "job.rounds.long.", "predicted."
WHY = {"rounds": "shares", "rounds.short.cutoff_tokens": "at 200 they cost more", "rounds.long.rollout": "wide"}
DOCUMENT = with_values(plain(PLAN_TEXT), {"job.why": WHY})
OTHER = "f" * 64


def plan(changed=None, signed=True):
    """The plan with other values; `signed`: with digests of its decisions, as if it was solved and not edited."""
    made = Plan.model_validate(with_values(DOCUMENT, changed or {}))
    return made.model_copy(update={"decisions_sha256": job_decisions(made.job)}) if signed else made


def scaled(factor, **error):
    """Seconds per sample and price times a factor; `error`: of the prediction."""
    figures = {P + "seconds_per_sample": 0.05 * factor, P + "usd_per_1k_samples": 0.00139 * factor}
    return figures | {f"{P}error.{name}": value for name, value in error.items()}


CUTOFF = {S + "cutoff_tokens": 200}
PROFILE, LENGTHS = {"inputs.profile.sha256": OTHER}, {"inputs.lengths.sha256": OTHER}


def test_what_a_reviewer_sees_of_a_changed_job():
    """Of the values of each case, both ways."""
    old, lines, file = plan(), [], GOLDEN / "diff-jobs.txt"
    for changed in cases_in(file):
        new = plan(changed)
        diff, back = diff_jobs(old, new), diff_jobs(new, old)
        assert not diff.same
        lines += [compact(changed), *markdown(job_report(diff, "plans/a.yaml")).splitlines()]
        lines += [f"back: {job_verdict(back)}", ""]
    same_as_golden(lines, file)
    data = flat(diff_jobs(old, plan({**CUTOFF, **scaled(0.0004), S + "rollout.engines": 1})).as_dict())
    full = markdown(job_report(diff_jobs(old, old), "a", "old and new", full=True), None).splitlines()
    same_as_golden([*data, "", *full], GOLDEN / "diff-data.txt")


def test_a_verdict_tells_another_cap_beside_the_bias():
    def of(cap_tokens, share):
        return plan({P + "cut": {"cap_tokens": cap_tokens, "share": share}, **scaled(0.5)})

    verdict = job_verdict(diff_jobs(of(16384, 0.011), of(8192, 0.12)))
    assert "length ratio unchanged, trained samples cut 1.1% at 16,384 tokens -> 12.0% at 8,192 tokens" in verdict
    assert "0.0% at 1,024 tokens -> 0.0% at 2,048 tokens" in job_verdict(diff_jobs(of(1024, 0.0), of(2048, 0.0)))
    assert "0.1% at 1,024 tokens -> 0.3% at 1,024" in job_verdict(diff_jobs(of(1024, 0.001), of(1024, 0.003)))
    for old, new in ((of(1024, 0.1), of(1024, 0.104)), (of(1024, 0.001), of(1024, 0.0011)), (plan(), of(1024, 0.5))):
        assert "trained samples cut" not in job_verdict(diff_jobs(old, new)), "noise, or an older plan"
    assert job_report(diff_jobs(of(1024, 0.1), of(512, 0.25)), "a").warnings == (
        "25% of the trained samples cut at 512 tokens, so that the cap decides what is trained",
    )
    for old, new in ((of(1024, 0.25), of(512, 0.4)), (of(1024, 0.1), of(512, 0.19))):
        assert job_report(diff_jobs(old, new), "a").warnings == (), "so it was before, or it is not much"
    text = markdown(job_report(diff_jobs(of(16384, 0.011), of(8192, 0.12)), "a"))
    assert "| trained samples cut at the cap | 1.1% | 12.0% | +10.9 points |" in text
    assert "trained samples cut at the cap | | 12.0%" in " ".join(
        markdown(one_job_report(of(8192, 0.12), "a", True, NO_FILES)).split()
    )


def test_what_a_plan_that_was_edited_is_told_to_be():
    old = plan().model_copy(update={"predicted_sha256": job_predictions(plan().predicted)})
    edited, figures = plan(CUTOFF, signed=False), old.model_copy(update={"predicted_sha256": "0" * 64})
    lines = []
    for a, b in ((old, edited), (edited, old), (edited, edited), (old, figures), (figures, old), (edited, figures)):
        lines += [*markdown(job_report(diff_jobs(a, b), "a")).splitlines(), ""]
    for one in (old, edited, figures):
        lines += [*markdown(one_job_report(one, "plan.yaml", True, NO_FILES)).splitlines(), ""]
    lines += markdown(one_job_report(edited, "plan.yaml", False, NO_FILES)).splitlines()
    same_as_golden(lines, GOLDEN / "diff-edited.txt")
    assert diff_jobs(old, figures).figures_edited == ("new",) and diff_jobs(edited, old).edited == ("old",)
    added = one_plan_dict(old, True)
    assert (added["kind"], added["same"], added["added"]["job"]["name"]) == ("job", False, "keyhunt")
    assert "removed" in one_plan_dict(old, False) and "inputs" not in added["added"]


def test_a_phase_that_changed_by_little_of_a_step_is_not_told():
    old, new = (plan({f"{P}phases_s.reward_exposed": seconds}) for seconds in (0.00305, 0.010))
    assert new.predicted.step_s.mean == 6.4
    assert "waiting for rewards" not in markdown(job_report(diff_jobs(old, new), "a"))
    assert "waiting for rewards" in markdown(job_report(diff_jobs(old, new), "a", full=True), None)
    much = plan({f"{P}phases_s.reward_exposed": 0.1})
    assert "| · waiting for rewards | 3.05 ms | 100 ms |" in markdown(job_report(diff_jobs(old, much), "a"))


def test_waits_are_told_to_a_part_of_a_round():
    waits = [{"mean_rounds": m, "longest_rounds": 19.0, "followed_rounds": 200, "untrained": u} for m, u in
             ((2.72, 0.003), (2.83, 0.6))]  # fmt: skip
    old, new = (plan({P + "wait": wait}) for wait in waits)
    text = markdown(job_report(diff_jobs(old, new), "a"))
    assert "| long rounds that a prompt waits for | 2.720 | 2.830 |" in text
    assert "| prompts that long rounds lack | 0.3% | 60.0% |" in text


def test_a_difference_without_one_of_inputs_names_the_options():
    solved, forced = plan(), plan({"solver.forced_mode": "exact", "solver.objective": "usd_per_sample"})
    assert job_verdict(diff_jobs(solved, forced)).endswith("; solved with --mode exact; solved with --objective usd")
    assert job_verdict(diff_jobs(forced, solved)).endswith("without --mode exact; solved with --objective seconds")
    assert job_verdict(diff_jobs(solved, plan(scaled(1.02)))).endswith(
        "no input or option differs: perhaps another --seed"
    )


SPELLINGS = {
    "a number spelt otherwise": ("p50: 6.1,", "p50: 61e-1,"),
    "another wording of why": ("at 200 they cost more", "nothing else is known"),
    "another time of solving": ("2026-01-02T03:04:05Z", "2027-01-02T03:04:05Z"),
    "another version of rlplan": ("rlplan: 0.1.0", "rlplan: 0.2.0"),
    "a file that moved": ("path: profile.yaml", "path: measured/profile.yaml"),
    "keys in another order": ("engines: 2, tp: 1", "tp: 1, engines: 2"),
    "a default written out": ("deadline_s: 2.0}", "deadline_s: 2.0, synchronous: false}"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_has_no_meaning_is_no_difference(spelling):
    old, (before, after) = plan(), SPELLINGS[spelling]
    assert before in dump(old)
    diff = diff_jobs(old, loads(dump(old).replace(before, after), Plan))
    assert diff.same and not diff.decisions and not diff.inputs
    assert len(markdown(job_report(diff, "a")).splitlines()) == 4 and job_verdict(diff).startswith("same:")


def test_a_plan_in_memory_is_the_same_as_its_file():
    precise = plan({P + "seconds_per_sample": 0.05 * (1 + 1e-9), P + "error.costs": 1 / 3})
    assert diff_jobs(precise, loads(dump(precise, digits=WRITTEN_DIGITS), Plan)).same


def test_the_reason_of_a_decision_is_that_of_the_nearest_key_above():
    why = {"rounds": "shares", "rounds.short.rollout": "engines", "rounds.short.rollout.drafts": "drafts"}
    for key, reason in (
        ("rounds.short.rollout.engines", "engines"), ("rounds.short.rollout.drafts.tokens", "drafts"),
        ("rounds.long", "shares"), ("rounds.long.train.dp", ""), ("rounds.short.rollout.max_num_seqs", ""),
    ):  # fmt: skip
        assert why_of(key, why) == reason


SOURCES = {"decode": 0.1, "sync": -0.04, "lengths-scale": 0.2}


def stated(parts=None, prompts=(), **errors):
    """A prediction's error; each kind 0 unless named."""
    return PredictedError(
        **{"costs": 0.0, "lengths": 0.0, "sampling": 0.0, **errors}, parts=parts or {}, prompts=prompts
    )


@given(st.lists(st.floats(0, 0.3), min_size=6, max_size=6), st.floats(0.5, 2), st.tuples(*[st.booleans()] * 3))
def test_the_deviations_are_those_of_drawn_errors(shares, ratio, common):
    """Both are linear in the six errors, so their squares are sums of squares, one for each error."""
    pairs = [(shares[2 * k], shares[2 * k] if both else shares[2 * k + 1], both) for k, both in enumerate(common)]
    (c1, c2, _), (l1, l2, _), (m1, m2, _) = pairs
    old, new = stated(costs=c1, lengths=l1, sampling=m1), stated(costs=c2, lengths=l2, sampling=m2)
    costs, lengths = ("common" if both else "independent" for both in common[:2])
    errors = Errors(old, new, costs, lengths, common[2])
    # What s2 (1 + y) - s1 (1 + x) and r (1 + y) / (1 + x) are off by, to first order, for s1 = 1 and s2 = r.
    difference = sum((a * (ratio - 1)) ** 2 if both else a**2 + (b * ratio) ** 2 for a, b, both in pairs)
    relative = sum(0.0 if both else ratio**2 * (a**2 + b**2) for a, b, both in pairs)
    assert errors.sigma(1.0, ratio) == pytest.approx(math.sqrt(difference), abs=1e-12)
    assert errors.ratio_sigma(1.0, ratio) == pytest.approx(math.sqrt(relative), abs=1e-12)


@given(st.lists(st.floats(-0.3, 0.3), min_size=6, max_size=6), st.floats(0.5, 2))
def test_sources_that_two_plans_share_cancel_in_their_difference(moved, ratio):
    one, two = (dict(zip(SOURCES, moved[k : k + 3], strict=True)) for k in (0, 3))
    # `lengths-` sources need the sets of prompts too, here the same for both.
    columns = ((0.1, -0.1), (0.1, -0.1))
    errors = Errors(stated(one, columns), stated({**two, "update": 0.1}, columns), "paired", "paired", True)
    apart = sum((two[k] - one[k]) ** 2 for k in SOURCES) + 0.1**2
    assert errors.ratio_sigma(1.0, ratio) == pytest.approx(ratio * math.sqrt(apart), abs=1e-12)
    absolute = sum((two[k] * ratio - one[k]) ** 2 for k in SOURCES) + (0.1 * ratio) ** 2 + (0.1 * (ratio - 1)) ** 2
    assert errors.sigma(1.0, ratio) == pytest.approx(math.sqrt(absolute), abs=1e-12)


def test_prompts_count_as_far_as_they_move_two_plans_differently():
    rng = random.Random(1)
    sets = [rng.gauss(0, 0.1) for _ in range(32)]

    def columns(slope, noise):
        return tuple(tuple(slope * x + rng.gauss(0, noise) for x in sets) for _ in range(2))

    def error(one, two, **more):
        return Errors(stated(prompts=one), stated(prompts=two, **more), "paired", "paired", True).ratio_sigma(1.0, 1.0)

    deviation = math.sqrt(statistics.fmean(x * x for x in sets))
    assert error(columns(1.0, 0.0), columns(1.0, 0.0)) == 0
    assert error(columns(1.0, 0.0), columns(0.4, 0.0)) == pytest.approx(0.6 * deviation)
    assert error(columns(1.0, 0.02), columns(0.4, 0.02)) == pytest.approx(0.6 * deviation, rel=0.2), "noise is no error"
    # A plan that states twice the error of its lengths that its sets of prompts show has a paired one twice as large.
    assert error(columns(1.0, 0.0), columns(0.4, 0.0), lengths=0.8 * deviation) == pytest.approx(1.2 * deviation)


def test_errors_are_paired_by_source_between_plans_of_the_same_inputs():
    sources = {P + "error.parts": SOURCES, P + "error.prompts": [[0.1, -0.1], [0.1, -0.1]]}
    old = plan(sources)
    one = {name: diff_jobs(old, plan({**sources, **case})).errors for name, case in (
        ("layout", {S + "train.dp": 2}), ("profile", PROFILE), ("lengths", LENGTHS), ("older", {P + "error.parts": {}}),
        ("speed", scaled(0.9)), ("price", {P + "usd_per_hour": 0.2}),
    )}  # fmt: skip
    assert {name: (each.costs, each.lengths, each.one_simulation) for name, each in one.items()} == {
        "layout": ("paired", "paired", False), "profile": ("independent", "paired", False),
        "lengths": ("paired", "independent", False), "older": ("common", "common", True),
        "speed": ("paired", "paired", False), "price": ("paired", "paired", True),
    }  # fmt: skip
    assert "profiles differ" in one["profile"].sentence() and "lengths differ" in one["lengths"].sentence()
    assert "older rlplan" in one["older"].sentence() and "differ, so" not in one["layout"].sentence()
    other = diff_jobs(plan(), plan({S + "train.dp": 2})).errors
    assert other.costs == "independent", "of older plans, other layouts have other errors"


def test_predictions_from_other_inputs_are_not_held_against_each_other():
    old, new = plan(), plan({**PROFILE, **CUTOFF, **scaled(1.4)})
    refused = diff_jobs(old, new)
    assert not refused.comparable and job_verdict(refused).startswith("not known to be faster or slower, since inputs")
    assert "slower: 40" not in job_verdict(refused) and not job_warnings(refused)
    assert any("a fault" in text for text in job_warnings(diff_jobs(old, new, repriced="a fault")))
    # The new inputs alone cost 75 % more, of which the new decisions give back a fifth.
    priced = Repriced(0.05 * 1.75, 0.00139 * 1.75, stated({"decode": 0.1}, ((0.1, -0.1), (0.1, -0.1))))
    apart = diff_jobs(old, new, repriced=priced)
    assert apart.effect("by_inputs.seconds_per_sample").relative == pytest.approx(0.75)
    assert apart.effect("by_decisions.seconds_per_sample").relative == pytest.approx(-0.2)
    verdict = job_verdict(apart)
    assert (
        verdict.startswith("by the decisions, faster: 20.0% fewer") and "by the inputs, slower: 75.0% more" in verdict
    )
    unsure = priced.error.model_copy(update={"costs": 0.9})
    by_inputs = diff_jobs(old, new, repriced=replace(priced, error=unsure)).effect("by_inputs.seconds_per_sample")
    assert by_inputs.relative_sigma > 1.75 * 0.9, "the error is that of the old decisions, not of the new plan"
    other = plan({**PROFILE, **CUTOFF, "job.name": "other"})
    assert "not comparable: the plans are of two jobs" in job_verdict(diff_jobs(old, other))
    same = diff_jobs(old, plan({**PROFILE, **scaled(1.4)}))
    assert job_verdict(same).startswith("by the inputs alone, slower: 40.0% more")


def test_old_and_new_are_in_one_unit_and_nothing_has_no_percentage():
    def of(old, new, unit="s", **more):
        return Quantity("x", "x", unit, old, new, **more)

    assert values(of(0.5, 1.25)) == ("0.500 s", "1.25 s") and values(of(0.5, 0.25)) == ("500 ms", "250 ms")
    assert values(of(None, 0.25)) == ("unknown", "250 ms")
    assert values(of(None, 2.0, missing="none")) == ("none", "2.00 s")
    assert change_text(of(0.0, 0.25)) == "" and change_text(of(1.0, 1.0)) == "unchanged"
    assert change_text(of(1.0, 0.9, relative_sigma=0.2)) == "-10.0% ±20.0%, not certain"
    assert change_text(of(1.0, 0.9, relative_sigma=0.02)) == "-10.0% ±2.0%"
    assert change_text(of(1.0, 11.0, relative_sigma=0.5)) == "11 times ±0.5" and change_text(of(1.0, 10.9)) == "+990.0%"
    assert change_text(of(None, 1.0)) == "unknown" and change_text(of(None, 1.0, missing="none")) == ""
    assert [delta_text(of(*pair)) for pair in ((1.0, 0.75), (0.5, 0.75), (1.0, 1.0), (None, 1.0))] == [
        "-0.250 s",
        "+250 ms",
        "",
        "",
    ]
    assert delta_text(of(0.25, 0.5, "share")) == "+25.0 points" and delta_text(of(1.0, 1.0004, "ratio")) == "+0.0004"
    texts = [
        value_text(each) for each in (None, NOT_GIVEN, True, 7, 10**15, 10**300, 0.1234567, {"a": [1, None]}, "f" * 64)
    ]
    assert texts == ["none", "not given", "true", "7", "1e+15", "huge", "0.123457", "{a: [1, none]}", "ffffffff…"]


def test_lists_are_compared_by_what_their_items_are_of():
    one, two = {"tp": 1, "engines": 2, "ep": 1, "step_s": 0.2}, {"tp": 2, "engines": 1, "ep": 1, "step_s": 0.3}
    assert list(changes({"rollout": [one, two]}, {"rollout": [two, one]})) == []
    [change] = changes({"rollout": [one, two]}, {"rollout": [{**two, "step_s": 0.4}, one]})
    assert (change.key, change.old, change.new) == ("rollout[tp=2,engines=1].step_s", 0.3, 0.4)
    [gone] = changes({"rollout": [one, two]}, {"rollout": [one]}, NOT_GIVEN)
    assert gone.old == two and gone.new is NOT_GIVEN
    assert [c.key for c in changes({"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 2}, {"x": 2}]})] == ["a[0].x"]
    assert [c.key for c in changes({"a": [1, 2], "b": [1]}, {"a": [1, 3], "b": [1, 1]})] == ["a", "b"]
    linked = [{"pools": ["a", "b"], "s": 1}, {"pools": ["a", "c"], "s": 1}]
    assert [c.key for c in changes({"l": linked}, {"l": linked[1:]})] == ["l[pools=a+b]"]


def test_numbers_are_the_same_to_the_written_digits():
    assert list(changes({"a": 1, "b": 0.1 + 0.2}, {"a": 1.0, "b": 0.3})) == []
    assert [c.key for c in changes({"a": 1, "b": 1}, {"a": True, "b": 1.00001})] == ["a", "b"]
    assert [c.key for c in changes({"a": 10**400}, {"a": 10**400 + 1})] == ["a"]


def test_a_folded_list_keeps_a_row_of_each_block():
    rows = [Row((f"a{i}",), "a") for i in range(9)] + [Row(("b",), "b")]
    kept, left = fold(rows, 3)
    assert [row.cells[0] for row in kept] == ["a0", "a1", "b"] and left == 7
    assert fold(rows, 10) == (rows, 0) and fold(rows, 0) == ([], 10)


def test_text_of_a_plan_breaks_no_markdown():
    assert escape("a|b [x](y) @ada #12 <img> *b*\nc") == ("a\\|b \\[x\\](y) &#64;ada &#35;12 &lt;img> \\*b\\* c")
    assert code("a`b|c") == "``a`b\\|c``" and code("`") == "`` ` ``" and code("") == ""
    report = job_report(diff_jobs(plan(), plan()), "a --> b <!-- c")
    assert markdown(report).splitlines()[0].count("--") == 2, "a name cannot end the comment"


def test_a_terminal_shows_tables_folded_and_notes_below_their_rows():
    rows = tuple(Row((f"k{i}", "1", "2"), tone=(-1) ** i) for i in range(22))
    columns = (TableColumn("key"), TableColumn("old", right=True), TableColumn("new"))
    noted = Table(columns, (Row(("n", "1", "2"), note="since"), Row(("m", "3", "4"))), note_title="why")
    report = Report(
        "p",
        "title",
        "verdict",
        ("careful",),
        (Table(columns, rows, rest="rest"), noted, Table(columns, ())),
        ("end",),
    )
    lines = []
    for full in (False, True):
        console = Console(width=80, record=True, file=StringIO(), force_terminal=True, color_system="standard")
        console.print(render(report, full))
        lines += console.export_text(styles=True).replace("\x1b", "~").splitlines()
    same_as_golden(lines, GOLDEN / "diff-terminal.txt")


def test_inputs_that_are_at_hand_tell_what_changed_in_them(folder, tmp_path):
    old = loads(folder.path("plan.yaml").read_text(), Plan)
    other = tmp_path / "new"
    other.mkdir()
    files = {
        "job.yaml": folder.path("job.yaml").read_text().replace("max_response_tokens: 1024",
        "max_response_tokens: 512"),
        "profile.yaml": "profile: {a: 2.0, b: 10, points: [1]}\nvolatile: 2\n",
        "lengths.jsonl": "".join(f'{{"tokens": {n}}}\n' for n in range(1, 41)) + '{"tok',
    }  # fmt: skip
    folder.path("profile.yaml").write_text("profile: {a: 1.0, b: 1, points: [0]}\nvolatile: 1\n")
    folder.path("lengths.jsonl").write_text('{"tokens": 5}\n\n{"tokens": 7}\n{"odd": 1}\n')
    names = ("cluster", "job", "profile", "lengths")
    for name in names:
        file = next(folder.root.glob(f"{name}.*"))
        (other / file.name).write_text(files.get(file.name, file.read_text()))
    digests = [
        {f"inputs.{name}.sha256": sha256_file(next(home.glob(f"{name}.*"))) for name in names}
        for home in (folder.root, other)
    ]
    old, new = (Plan.model_validate(with_values(old.model_dump(mode="json"), each)) for each in digests)
    mine, theirs = InputFiles(folder.root), InputFiles(other)
    lines = markdown(job_report(diff_jobs(old, new, mine, theirs), "a")).splitlines()
    same_as_golden(lines, GOLDEN / "diff-inputs.txt")
    assert diff_jobs(old, new, mine, theirs).stale == {}
    # What changed after it was solved.
    job = other / "job.yaml"
    job.write_text(job.read_text() + "# later\n")
    (other / "profile.yaml").unlink()
    diff = diff_jobs(old, new, InputFiles(folder.root), InputFiles(other))
    by_name = {change.name: change for change in diff.inputs}
    assert by_name["job"].keys is None and "no longer what the new plan was solved from" in by_name["job"].reason
    assert by_name["profile"].reason == "the new plan's profile.yaml is not at hand"
    assert diff.stale == {"job": "other bytes", "profile": "not at hand"}
    unsolved = diff_jobs(old, old, InputFiles(folder.root), InputFiles(other))
    assert not unsolved.same, "a changed input is a difference, also if nobody solved again"
    assert job_verdict(unsolved).startswith(
        "stale: job.yaml, profile.yaml and 1 more changed"
    ) or "stale:" in job_verdict(unsolved)
    # Of a change that the solver does not read nothing is stale.
    paths = (folder.path(name) for name in ("cluster.yaml", "job.yaml", "profile.yaml"))
    read = old.model_copy(update={"inputs": old.inputs.model_copy(update={"solver_read": solver_read(*paths)})})
    folder.path("job.yaml").write_text(folder.path("job.yaml").read_text().replace("1.0e-3", "2.0e-3"))
    assert diff_jobs(read, read, new_files=InputFiles(folder.root)).stale == {}
    assert diff_jobs(old, old, new_files=InputFiles(folder.root)).stale == {"job": "other bytes"}


# -- plans of groups --------------------------------------------------------------------------------------------------


def move(job, start, end):
    return {
        "job": job, "from_group": start, "to_group": end, "price_usd": 12.5, "price_s": 300.0, "together": 1,
        "saves_usd_per_hour": 10.0, "needed": False,
    }  # fmt: skip


FROM = groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d", "e"])})
PREVIOUS = {"inputs": FROM.inputs.model_dump() | {"previous": {"path": "old.yaml", "sha256": "a" * 64}}}
CHANGED = {"inputs": FROM.inputs.model_dump() | {"workload": {"path": "workload.yaml", "sha256": "b" * 64}}}
LIMIT = {"solver": FROM.solver.model_dump() | {"status": "limit", "gap": None}}
DECLINED = {"declined": {"jobs": ["c"], "saves_usd_per_hour": 3.0, "price_usd": 9.0, "hours": 2.0, "reason": "price"}}
SAME = {"g1": group(["a", "b", "c"]), "g2": group(["d", "e"])}
MOVED = {"g1": group(["a", "b"]), "g2": group(["c", "d", "e"])}
OTHER_WAY = member() | {"rollout": pinned("roll", 0) | {"way": 1}}
GROUPS = {
    "arrived, left, moved": groups_plan({"g2": group(["d", "c"]), "g5": group(["a", "b", "f"])}),
    "ids swapped": groups_plan({"g1": group(["d", "e", "a"]), "g2": group({"b": member(p95=1.3), "c": member()})}),
    "one id, two groups": groups_plan({"g2": group(["x", "y"]), "g1": group(["a", "b", "c"])}),
    "bounds": groups_plan(SAME | {"g1": group({"a": member(p95=1.6), "b": member(1.3), "c": member(slo=1.7)})}),
    "nodes": groups_plan({"g1": group(["a", "b", "c"], roll_nodes=2), "g2": group({"d": OTHER_WAY, "e": member()})}),
    "rules and inputs": groups_plan(SAME, rules={"policy": "first_come"}, **CHANGED, **LIMIT, **DECLINED),
    "moves": groups_plan(MOVED, moves=[move("c", "g1", "g2")], **PREVIOUS),
}  # fmt: skip


def test_what_a_reviewer_sees_of_changed_groups():
    lines = []
    for name, new in GROUPS.items():
        diff = diff_groups(FROM, new)
        assert not diff.same and diff_groups(new, loads(dump(new), GroupsPlan)).same
        lines += [name, *markdown(groups_report(diff, "groups.yaml")).splitlines()]
        lines += [f"back: {groups_verdict(diff_groups(new, FROM))}", ""]
    for sha in ("a" * 64, "b" * 64):
        diff = diff_groups(FROM, GROUPS["moves"], old_sha256=sha)
        assert diff.moves_from_old == (sha[0] == "a") and [each.name for each in diff.inputs] == ["previous"] * (
            sha[0] == "b"
        )
        lines += [*markdown(groups_report(diff, "groups.yaml")).splitlines(), ""]
    lines += markdown(one_groups_report(GROUPS["bounds"], "groups.yaml", True, NO_FILES)).splitlines()
    lines += flat(diff_groups(FROM, GROUPS["moves"], old_sha256="a" * 64).as_dict())
    lines += markdown(groups_report(diff_groups(FROM, FROM), "groups.yaml", full=True)).splitlines()
    same_as_golden(lines, GOLDEN / "diff-groups.txt")


def test_groups_are_matched_so_that_fewest_jobs_move():
    new = groups_plan({"g7": group(["d", "e"]), "g3": group(["a", "b", "c"])})
    diff = diff_groups(FROM, new)
    assert diff.same and diff.matched == {"g3": "g1", "g7": "g2"} and diff.count("stays") == 5
    old = groups_plan({"g1": group(["a", "b", "c"]), "g2": group(["d", "e", "f"])})
    new = groups_plan({"g1": group(["d", "e", "a"]), "g2": group(["b", "c", "f"])})
    assert {job.name: job.status for job in diff_groups(old, new).jobs if job.status != "stays"} == {
        "a": "moved",
        "f": "moved",
    }
    tie = groups_plan({"g1": group(["a", "d"]), "g2": group(["b", "c"])})
    halves = groups_plan({"g2": group(["a", "b"]), "g1": group(["c", "d"])})
    assert diff_groups(tie, halves).matched == {"g1": "g1", "g2": "g2"}, "ids are kept where it costs no move"


def test_two_hundred_moving_jobs_fit_into_forty_lines():
    jobs = [f"job-{i:03}" for i in range(200)]
    old = groups_plan({f"g{i}": group(jobs[4 * i : 4 * i + 4]) for i in range(50)})
    new = groups_plan({f"g{i}": group({name: member(p95=1.7) for name in jobs[i::50]}) for i in range(50)})
    diff = diff_groups(old, new)
    text = markdown(groups_report(diff, "groups.yaml"))
    assert len(text.splitlines()) <= MAX_LINES
    assert "jobs moved" in text and "… and " in text and "200 bounds broken" in text
    full = markdown(groups_report(diff, "groups.yaml", full=True), None)
    assert all(f"| `{name}` |" in full for name in jobs)
    assert len(markdown(one_groups_report(new, "groups.yaml", True, NO_FILES)).splitlines()) <= MAX_LINES


# -- any two plans ----------------------------------------------------------------------------------------------------


def holds_of_jobs(a, b, full):
    """A difference of at most forty lines and finite JSON; a plan is the same as itself."""
    diff = diff_jobs(a, b)
    assert json.loads(json.dumps(diff.as_dict(), allow_nan=False))
    text = markdown(job_report(diff, "plans/a.yaml", full=full))
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES and lines[0].startswith("<!-- rlplan diff")
    if not diff.same:
        assert "seconds per sample" in text and "USD per 1000 samples" in text
        assert all(line.endswith("|") for line in lines if line.startswith("|"))
    assert not diff.decisions or diff.decisions[0].change.key in text
    assert len(markdown(one_job_report(a, "a", True, NO_FILES)).splitlines()) <= MAX_LINES
    itself = diff_jobs(a, a)
    assert itself.same and not any(each.changed for each in (*itself.effects, *itself.phases))


def holds_of_groups(a, b, full):
    """The same of groups; each job of both plans has arrived, left, or is in both."""
    diff = diff_groups(a, b)
    json.dumps(diff.as_dict(), allow_nan=False)
    text = markdown(groups_report(diff, "groups.yaml", full=full))
    assert len(text.splitlines()) <= MAX_LINES and ("USD per hour" in text or diff.same)
    assert len(markdown(one_groups_report(a, "groups.yaml", True, NO_FILES)).splitlines()) <= MAX_LINES
    old, new = ({name for each in plan.groups.values() for name in each.jobs} for plan in (a, b))
    found = {status: {job.name for job in diff.jobs if job.status == status} for status in ("arrived", "left")}
    assert found == {"arrived": new - old, "left": old - new} and len(diff.jobs) == len(old | new)
    assert diff_groups(a, a).same


def test_any_two_plans_have_a_short_difference():
    settings(relaxed, max_examples=4)(given(plans(), plans(), st.booleans())(holds_of_jobs))()
    settings(relaxed, max_examples=8)(given(groups_plans(), groups_plans(), st.booleans())(holds_of_groups))()


@pytest.mark.search
def test_many_plans_have_a_short_difference():
    settings(relaxed, max_examples=60)(given(plans(), plans(), st.booleans())(holds_of_jobs))()
    settings(relaxed, max_examples=100)(given(groups_plans(), groups_plans(), st.booleans())(holds_of_groups))()
