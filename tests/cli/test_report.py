"""`rlplan report`: its text, runs that go on, died or never began, and traces that were broken by chance."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.cli.screens.bars import spark
from rlplan.cli.screens.report_text import comparison, run_text
from rlplan.plans.phrases.numbers import beside_predicted, deviation, deviation_text

from ..golden import same_as_golden
from ..plans.page.runs import write_run
from .command_line import printed, refused, rlplan
from .run_folders import REPORTED
from .solved_folder import listing

GOLDEN = Path(__file__).with_name("golden")

DETAIL = {
    "mode": "exact", "steps": 3, "step_s": 1.0, "step_s_expected": 0.0, "reward_timeouts": {}, "owed_prompts": 0.0,
    "step_s_predicted": 1.1, "deviation": -0.09, "phases_s": {},
    "rounds": {}, "reward_first": 0.1, "reward_last": 0.2, "rewards": [0.1, 0.2], "on_policy_violations": 0,
    "conservation_violations": 0, "logprob_max_abs_diff": 0.0, "restarts": 0, "state_text": "finished: 3 of 3 steps",
    "tail": {"short": None, "long": None}, "max_over_median_tokens": 3.0, "incidents": [],
    "waste": {"tokens": {"trained": 9}, "share": 0.0, "aborted_samples": 0}, "coverage": {},
    "overlap": {
        "reward": {"exposed_s": 0.01, "alone_s": 0.3}, "train": {"exposed_s": 0.2, "alone_s": 0.5},
        "streamed": {"rounds": 2, "groups": 7.5, "moved": 3.0},
        "tails": {"rounds": 3, "seconds": 4.2, "moved": 5.5},
        "balanced": {"rounds": 4, "known": 0.75},
    },
}  # fmt: skip


def phase(measured, predicted):
    deviation = measured / predicted - 1 if predicted else None
    return {"measured": measured, "predicted": predicted, "deviation": deviation}


def below(p50, p95, steps):
    return {"below_p50": p50, "below_p95": p95, "share_below_p50": p50 / steps, "share_below_p95": p95 / steps}


COVERAGE = {
    "short": {"steps": 40, "step_s": below(18, 37, 40)}, "long": {"steps": 8, "step_s": below(8, 8, 8)},
    "all": {"steps": 48, "step_s": below(24, 46, 48)},
}  # fmt: skip
EPOCH = {"epoch": 1, "rounds": 2, "accepted": 0.5, "by_source": {"own": 0.5}, "saved_s": 1.5}
DRAFTS = {
    **EPOCH, "accepted_share_at": [0.9, None], "epochs": [EPOCH, {**EPOCH, "epoch": 2, "accepted": 0.75}],
    "batches": {}, "ahead_samples": 0, "ahead_tokens": 0, "index_bytes": 5000, "history_bytes": 700,
}  # fmt: skip
INCIDENT = {"step": 1, "t_s": 0.0, "kind": "skipped"}
EVIL = "a\x1b[31mb\nc\u202ed\udc80"
MISSING_ENGINES = {"steps": 1, "engine_steps": 1, "of_engine_steps": 4}
ROUND = {"step_s": 2.0, "step_s_predicted": 1.5, "share": 0.25, "share_predicted": 0.2}

VARIANTS = {
    "one step": {"steps": 1},
    "phases that differ by much and by under 1 % of the step, and one that nobody predicted": {"phases_s": {
        "train": phase(0.5, 0.4), "sync": phase(0.001, 0.01), "rollout": phase(0.001, 1.0),
        "reward_exposed": phase(0.2, 0.0)}},
    "a long round that is to come": {"step_s_expected": 0.4},
    "rounds of two kinds": {"rounds": {"short": ROUND, "long": None}},
    "no numbers": {"rewards": [0.0, None, 1.0], "step_s": None, "deviation": None, "reward_first": None,
                   "reward_last": None, "logprob_max_abs_diff": None},
    "steps below the predicted band, by two kinds": {"coverage": COVERAGE},
    "steps below the predicted band, by one": {"coverage": {key: COVERAGE[key] for key in ("short", "all")}},
    "timeouts": {"reward_timeouts": {"executions": 640, "correct": 300, "timeouts": 32, "cut": 17}},
    "timeouts that an older run counted": {"reward_timeouts": {"timeouts": 3}},
    "no timeouts": {"reward_timeouts": {"executions": 640, "timeouts": 0, "cut": 0}},
    "rewards that failed": {"reward_failures": {"infra_failed": 2, "timeout": 1}},
    "rewards of two parts": {"reward_parts": {
        "math": {"mean": 0.5, "mean_s": 0.25, "outcomes": {"ok": 9, "timeout": 2}},
        "judge": {"mean": None, "mean_s": None, "outcomes": {"ok": 9}}}},
    "lengths beside the plain run's": {"length_ratio": 0.98, "length_ks": 0.01234, "length_ratio_standard_error": 0.01,
                                       "length_ratio_predicted": 1.0},
    "lengths of a run that owes prompts": {
        "length_ratio": 0.98, "length_ks": 0.01234, "length_ratio_standard_error": 0.01, "length_ratio_predicted": 1.0,
        "owed_prompts": 3, "length_ratio_as_trained": 0.94},
    "gradients of both kinds of round": {"gradients": {
        "short": {"norm": 0.31, "scale": 1.0}, "long": {"norm": 0.42, "scale": 0.875}, "ratio": 1.35,
        "ratio_planned": 1.5}},
    "samples cut at the cap": {"cut_share": 0.125, "cut_share_predicted": 0.1},
    "samples cut at the cap, of an older plan": {"cut_share": 0.125, "cut_share_predicted": None},
    "tails and waste": {"tail": {"short": {"share": 0.25, "rounds": 2, "of_rounds": 3}, "long": None},
                        "waste": {"tokens": {"trained": 9, "deferred": 3000}, "share": 0.125, "aborted_samples": 4}},
    "samples that were stopped": {"waste": {"tokens": {}, "share": 0.0, "aborted_samples": 1}},
    "nothing overlapped": {"overlap": {**DETAIL["overlap"], **dict.fromkeys(("streamed", "tails", "balanced"))}},
    "drafts": {"drafts": DRAFTS},
    "drafts that cost time, and samples ahead": {"drafts": {**DRAFTS, "saved_s": -1.5, "ahead_samples": 2,
                                                            "ahead_tokens": 60}},
    "drafts of many epochs whose time nobody knows": {"drafts": {
        **DRAFTS, "saved_s": None, "by_source": {}, "accepted_share_at": [], "epochs": [EPOCH] * 9}},
    "training": {"skipped_steps": 2, "logprob_mean_abs_diff": 1e-4, "logprob_p99_abs_diff": 2e-3,
                 "logprob_beyond_share": 0.25, "importance_truncated_share": 0.5, "importance_ratio_mean": 1.00012,
                 "kl_reference": 0.0125, "kl_reference_max": 0.02, "reference_s": 0.31},
    "checkpoints": {"checkpoints": {"count": 3, "bytes": 5e9, "stood_s_per_step": 0.25, "write_s": 4.0}},
    **{f"missing engines that cost {cost_s}": {"missing_engines": {**MISSING_ENGINES, "cost_s": cost_s}}
       for cost_s in (3.0, 0.0, -1.0, None)},
    "eight incidents": {"incidents": [{**INCIDENT, "step": n, "text": f"engine {n}"} for n in range(8)]},
    "ten incidents": {"incidents": [{**INCIDENT, "step": n, "text": f"engine {n}"} for n in range(10)]},
    "texts that a terminal would follow": {
        "incidents": [{**INCIDENT, "text": EVIL}], "state_text": EVIL, "reward_failures": {EVIL: 1},
        "waste": {"tokens": {EVIL: 3}, "share": 0.1, "aborted_samples": 0}},
    "no step": {"steps": 0, "state_text": EVIL, "incidents": [{**INCIDENT, "text": EVIL}]},
    "a run that is quiet": {"quiet_s": 300.0},
    "a machine that is slower than it was": {"machine_factor": 1.2, "model_error": -0.04,
        "model_error_standard_error": 0.05, "machine": {
        "rollout": {"factor": 1.25, "model_error": 0.01}, "train": {"factor": 1.1, "model_error": -0.2}}},
    "a known peak": {"limit": {
        "step_s": 0.5, "of_bandwidth": 0.25, "of_bandwidth_predicted": 0.3, "mfu": None, "mfu_predicted": 0.4}},
}  # fmt: skip


def test_the_text_of_a_run_follows_its_figures():
    plain = run_text("a", DETAIL).splitlines()
    lines = [*plain]
    for name, changes in VARIANTS.items():
        text = run_text("a", {**DETAIL, **changes})
        assert all(character == "\n" or character.isprintable() for character in text)
        more, less = ([line for line in one if line not in other] for one, other in (
            (text.splitlines(), plain), (plain, text.splitlines())))  # fmt: skip
        lines += ["", f"## {name}", *(f"+{line}" for line in more), *(f"-{line}" for line in less)]
    same_as_golden(lines, GOLDEN / "run_text.txt")
    assert spark([]) == "" and spark([0.5, None] * 40) == "?" * 40 and spark([-3.0, 9e9]) == " \u2588"


def test_runs_stand_in_a_table_with_the_plain_one_first():
    def detail(mode, step_s, speedup, **changes):
        return {"mode": mode, "steps": 3, "step_s": step_s, "speedup": speedup, "length_ratio": 1.0,
                "length_ratio_standard_error": 0.01, "step_s_predicted": 1.0, "machine_factor": 1.19,
                "model_error": 0.04, "model_error_standard_error": 0.02,
                "speedup_predicted": 1.25, **changes}  # fmt: skip

    runs = {"a": detail("exact", 2.0, 1.5), "b": detail("defer", 1.5, 2.0, length_ratio=None),
            "c": detail("race", 1.0, 3.0, steps=0), "drafts": detail("sync", 2.5, 1.2),
            "plain": detail("sync", 3.0, 1.0, machine_factor=None, model_error=None)}  # fmt: skip
    of_roles = {
        "machine_factor": {"baseline": None, "planned": 1.19},
        "model_error": {"baseline": None, "planned": 0.04},
    }
    table = comparison({"plain": "plain", "deviation": {}, "runs": runs, **of_roles}).splitlines()
    assert table == [
        "               s a step  predicted  machine     model off  speed  predicted   length ratio",
        "plain (sync)      3.000      1.000                         1.00x      1.25x              1",
        "drafts (sync)     2.500      1.000    1.19x  +4.0% ± 2.0%  1.20x      1.25x  1.000 ± 0.010",
        "a (exact)         2.000      1.000    1.19x  +4.0% ± 2.0%  1.50x      1.25x  1.000 ± 0.010",
        "b (defer)         1.500      1.000    1.19x  +4.0% ± 2.0%  2.00x      1.25x",
        "race and defer train on shorter responses than the model gives: their speed is no fair comparison",
        "machine 1.19x slower than profiled; beyond that runs took other seconds than predicted: planned +4.0%",
    ]


def test_runs_that_all_deviate_one_way_blame_the_machine():
    def said(*deviations):
        roles = dict(zip(("baseline", "planned", "race"), deviations, strict=True))
        unknown = {"machine_factor": dict.fromkeys(roles), "model_error": dict.fromkeys(roles)}
        return comparison({"plain": "p", "deviation": roles, "runs": {}, **unknown}).splitlines()[-1]

    assert said(0.30, 0.34, 0.365) == (
        "every run took longer than predicted (+30% to +36%): the machine was slower than when it was profiled; the "
        "speed of one run over another is within 5.0% of the predicted one"
    )
    assert "less than predicted (-20% to -30%)" in said(-0.3, -0.2, None) and "faster" in said(-0.3, -0.2, None)
    assert "the machine" in said(0.11, 0.11, None) and "the machine" in said(-0.11, -0.11, None)
    for deviations in ((0.3, 0.05, 0.4), (0.3, -0.3, 0.2), (-0.05, 0.0, 0.02), (0.3, None, None), (-0.3, -0.08, None)):
        assert "the machine" not in said(*deviations)


def test_deviations_are_measured_over_predicted_and_signed():
    assert (deviation_text(deviation(3.0, 9.3)), deviation_text(deviation(16.8, 10.0))) == ("-68%", "+68%")
    assert deviation_text(deviation(10.001, 10.0)) == "0%" and deviation_text(None) == "–"
    assert beside_predicted(3.0, 9.3) == "predicted 9.30 s, took 3.00 s (-68%)"
    assert beside_predicted(None, 9.3) == "predicted 9.30 s, took unknown"
    line = run_text("a", {**DETAIL, "phases_s": {"train": phase(0.5, 0.4), "sync": phase(0.001, 0.009)}}).splitlines()
    told = {row[2:20].strip(): row.split()[-1] for row in line[2:5]}
    assert told["training"] == "+25%" and told["weight transfer"] == "0.001", "silence under 1 % of the step"


# -- folders of runs ---------------------------------------------------------------------------------------------------


def report(folder):
    return json.loads(printed("report", folder, "--json"))


def test_runs_side_by_side_are_reported_as_text_json_and_page(tmp_path):
    runs, page = tmp_path / "runs", tmp_path / "report.html"
    for name, mode, killed in (("plan", "exact", True), ("sync", "sync", False)):
        write_run(runs / name, REPORTED, mode, steps=12, killed=killed)
    before = listing(runs)
    result = rlplan("report", runs, "--html", page)
    assert result.returncode == 0 and "torn last line" in result.stderr
    assert "running or died: 12 of 40 steps; the trace was last written" in result.stdout
    assert "stopped by a signal, with a checkpoint: 12 of 40 steps" in result.stdout
    assert "step 7, " in result.stdout and "restart: engine 1" in result.stdout
    assert "tokens of finished samples were not trained (tokens: deferred" in result.stdout
    assert result.stdout.endswith(f"page: {page}\n") and "\nsync " in result.stdout
    assert page.read_text().startswith("<!DOCTYPE html>") and "running or died" in page.read_text()
    found = report(runs)
    assert {name: run["state"] for name, run in found["runs"].items()} == {"plan": "open", "sync": "stopped"}
    detail = found["runs"]["plan"]
    assert len(detail["series"]["total_s"]) == 12 and [i["kind"] for i in detail["incidents"]] == ["restart"]
    assert detail["rounds"]["long"]["measured"]["rollout_s"]["p95"] >= detail["rounds"]["long"]["rollout_s"] > 0
    assert detail["predicted"]["lengths_tokens"][20] == 1024
    assert rlplan("report", runs, "--html", "-").stdout.startswith("<!DOCTYPE html>")
    assert listing(runs) == before, "a run that goes on is not written to"
    for target in (runs / "plan" / "trace.jsonl", runs / "plan" / "plan.yaml"):
        for folder in (runs, runs / "plan"):
            refused(rlplan("report", folder, "--html", target), target.name, "is an input")
    refused(rlplan("report", runs, "--html", tmp_path / "none" / "a.html"), "a.html", "does not exist")
    refused(rlplan("report", runs, "--html", "-", "--json"), "--html - and --json both write to standard output")


@pytest.mark.parametrize(
    "trace", ["", '{"event":"ru', '{"event":"run","t_s":1.0,"steps":40}\n{"event":"sample","t_s":2']
)
def test_a_run_before_its_first_step_is_reported(trace, tmp_path):
    (tmp_path / "plan.yaml").write_text(REPORTED)
    (tmp_path / "trace.jsonl").write_text(trace)
    text = printed("report", tmp_path, "--html", tmp_path / "report.html")
    assert "no step was finished" in text and "predicted 6.40 s a step" in text
    assert "no step was finished" in (tmp_path / "report.html").read_text()
    assert report(tmp_path)["runs"][tmp_path.name]["steps"] == 0


def test_samples_of_an_unfinished_step_are_not_trained(tmp_path):
    home = write_run(tmp_path / "run", REPORTED, "sync", steps=3)
    trace = home / "trace.jsonl"
    whole = report(home)["runs"]["run"]["waste"]["tokens"]["trained"]
    lines = trace.read_text().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if '"event": "step"' in line)
    trace.write_text("".join(lines[:last]))
    found = report(home)["runs"]["run"]
    assert found["steps"] == 2 and found["waste"]["tokens"]["trained"] < whole


# -- traces that somebody broke ----------------------------------------------------------------------------------------

ODD = [
    None, True, 0, 0.0, -0.0, 1, -1, -0.5, 0.5, 1e-300, 1e300, 10**15, 10**18, 10**400, float("inf"), float("-inf"),
    float("nan"), "", "x", "long", "\x1b[31m", "a\nb", "\u202e", "\udc80", "é", [], {}, [1], [[]], {"a": "b"},
    {"trained": 1e9}, {"loss": None}, {"timeouts": 3}, {"logprob_max_abs_diff": float("nan")},
]  # fmt: skip
MISSING = object()
NAN = float("nan")


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    home = write_run(tmp_path_factory.mktemp("whole") / "run", REPORTED, "exact", steps=6)
    *found, last = [json.loads(line) for line in (home / "trace.jsonl").read_text().splitlines()]
    at = {"t_s": last["t_s"], "step": 6}
    return [
        *found,
        {"event": "restart", **at, "whom": "engine 1", "reason": "killed"},
        {"event": "skipped", **at, "reason": "not finite", "groups": 2},
        {"event": "failed", **at, "prompt": "p1", "reason": "no answer"},
        {"event": "resume", **at, "steps": 40},
        {**last, "reason": "out of memory"},
    ]


def holds(folder, events):
    """Whatever the trace: exit code 0, or 2 and one line; the same for text, JSON and page."""
    (folder / "plan.yaml").write_text(REPORTED)
    (folder / "trace.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    codes = set()
    for options in ((), ("--json",), ("--html", folder / "page.html")):
        result = rlplan("report", folder, *options)
        codes.add(result.returncode)
        assert result.returncode in (0, 2) and result.stderr.count("\n") == result.returncode // 2, result.stderr
        assert all(c == "\n" or c.isprintable() for c in result.stdout + result.stderr)
        if options == ("--json",) and result.returncode == 0:
            json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(codes) == 1
    return codes.pop()


def any_trace_is_answered(data, events, folder):
    broken = copy.deepcopy(events)
    kind = data.draw(st.sampled_from(["step", "sample", "run", "restart", "skipped", "failed", "resume", "end"]))
    here = [event for event in broken if event["event"] == kind]
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(here[0].keys() - {"event"})))
        value = data.draw(st.sampled_from([*ODD, MISSING]))
        for event in here if data.draw(st.booleans()) else [data.draw(st.sampled_from(here))]:
            event.pop(name, None)
            if value is not MISSING:
                event[name] = value
    holds(folder, broken)


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(relaxed, max_examples=8)
@given(data=st.data())
def test_some_broken_traces_are_reported_or_refused(data, events, tmp_path):
    any_trace_is_answered(data, events, tmp_path)


@pytest.mark.search
@settings(relaxed, max_examples=100)
@given(data=st.data())
def test_any_broken_trace_is_reported_or_refused(data, events, tmp_path):
    any_trace_is_answered(data, events, tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"logprob_max_abs_diff": NAN}}, ["differ by at most unknown", "not a number: from this step on"]),
        ({"reward_mean": NAN}, ["reward unknown -> unknown  ??????", "reward_mean; training may have diverged"]),
        ({"metrics": {}}, ["differ by at most unknown"]),
        ({"total_s": 0.0}, ["took 0 s (-100%)"]),
    ],
)
def test_a_run_that_diverged_is_reported_with_what_is_known(changes, words, events, tmp_path):
    assert holds(tmp_path, [{**event, **changes} if event["event"] == "step" else event for event in events]) == 0
    text = printed("report", tmp_path)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_without_unicode_gets_plain_letters(encoding, events, tmp_path, monkeypatch):
    assert holds(tmp_path, [*events[:-1], {**events[-1], "reason": "kaputt – ü"}]) == 0
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    text = printed("report", tmp_path)
    assert "reward 0.4" in text and "kaputt ?" in text and ("ü" in text) is (encoding == "latin-1")


def test_an_open_run_says_how_quiet_it_is(events, tmp_path):
    assert holds(tmp_path, events) == 0
    assert printed("report", tmp_path, "--json") == printed("report", tmp_path, "--json")
    assert holds(tmp_path, events[:-1]) == 0
    [found] = report(tmp_path)["runs"].values()
    assert found["state"] == "open" and found["quiet_s"] >= 0 and found["written_at"].endswith(" UTC")
    page, text = (tmp_path / "page.html").read_text(), printed("report", tmp_path)
    assert " ago" not in page.split("<script>")[0] and found["written_at"] in page and "This page was written" in page
    assert f"last written {found['written_at']}" in text and "; quiet for " in text


def test_a_run_that_cannot_be_read_is_named_beside_the_others(events, tmp_path):
    for name in ("good", "old"):
        (tmp_path / name).mkdir()
        assert holds(tmp_path / name, events) == 0
    (tmp_path / "old" / "plan.yaml").write_text(REPORTED.replace("reward_slack_s", "slack_s"))
    result = rlplan("report", tmp_path, "--html", tmp_path / "page.html")
    assert result.returncode == 0 and "good (exact)" in result.stdout and "old (exact)" not in result.stdout
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("warning: left out: ")
    assert "old/plan.yaml" in result.stderr and "of another version of rlplan, or was edited" in result.stderr
    assert "Left out: " in (tmp_path / "page.html").read_text()
    assert [*report(tmp_path)["unreadable"]] == ["old"]
    (tmp_path / "good" / "plan.yaml").unlink()
    refused(rlplan("report", tmp_path), "good/plan.yaml")
