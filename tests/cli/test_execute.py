"""`rlplan execute`: what a dry run says, who runs where, what the executor is asked to do, and the lines on the way.

Nothing is executed here: the executor's own tests start engines.
"""

import io
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import rlplan as package
from rlplan.cli.execute import placement_data, placement_lines
from rlplan.cli.screens import live as group_live
from rlplan.cli.screens.live import GroupView, LiveView
from rlplan.cli.shared.trust import Trust
from rlplan.executor.groups.job_process import JobEnd
from rlplan.executor.placement.live_checks import LiveCheck
from rlplan.executor.placement.run_placement import Room, place
from rlplan.executor.prepare import Options
from rlplan.plans.check.finding import Finding
from rlplan.plans.phrases.numbers import duration
from rlplan.plans.schema.plan import load_plan
from rlplan.traces.time_left import time_left_s

from ..group_documents import group, groups_plan
from .command_line import data, printed, refused, rlplan

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"
SOUND = "can be started, since inputs, memory and files are in order: plan\n"


@pytest.mark.parametrize(("lack", "code"), [(None, 0), ("has 1 node", 1)])
def test_a_dry_run_looks_for_room_in_the_cluster(lack, code, solved, monkeypatch):
    found = LiveCheck(["10.0.0.7"], lack, in_cluster=True)
    monkeypatch.setattr("rlplan.executor.placement.live_checks.live_check", lambda placement, kind: found)
    text = printed("execute", solved / "plan.yaml", "--show-placement", code=code)
    listed, _, placed = text.partition("node 0 of pool main: 10.0.0.7\n")
    assert placed and all(line.split()[0] in ("reads", "loads", "writes", "digest") for line in listed.splitlines())
    assert text.splitlines()[-1] == (f"cluster in RAY_ADDRESS: {lack}" if lack else SOUND.strip())
    result = data("execute", solved / "plan.yaml", "--dry-run", code=code)
    assert (result["shortage"], result["ok"]) == (lack, not lack)


@pytest.fixture
def asked(monkeypatch):
    """What the executor was asked to do, and whether it is to say that it finished."""
    made = SimpleNamespace(finished=True)

    def execute(executions, options, view):
        made.executions, made.options, made.view = executions, options, view
        return made.finished

    monkeypatch.setattr("rlplan.executor.execute.execute", execute)
    return made


def test_options_reach_the_executor_and_its_end_the_exit_code(solved, asked):
    out, plan = solved / "run", solved / "plan.yaml"
    assert printed("execute", plan, "--out", out) == f"done; see: rlplan report {out}\n"
    assert asked.options == Options(40) and [e.name for e in asked.executions] == ["plan"]
    words = "--steps 7 --checkpoint-every 3 --stall-timeout 9 --grace-s 2 --restarts-per-hour 5 --node-patience 8"
    words += " --no-drain --keep-every 6 --save-model-every 4 --unsafe-versions"
    asked.finished = False
    stopped = printed("execute", plan, "--out", out, *words.split(), code=130)
    assert stopped == f"stopped with checkpoints; continue with --resume, or see: rlplan report {out}\n"
    assert asked.options == Options(
        7, False, 3, 9.0, 2.0, 5, 8.0, drain_queue=False, keep_every=6, save_model_every=4, unsafe_versions=True
    )
    refused(rlplan("execute", plan, "--out", out, "--readmit"), "--readmit is for --resume")
    two = solved / "other.yaml"
    two.write_bytes(plan.read_bytes())
    summary = data("execute", plan, two, "--out", out, code=130)
    assert summary == {"out": str(out), "runs": ["plan", "other"], "finished": False}


ENDS = {
    "done": ({"a": JobEnd(0, "", 1)}, 0, "a: done"),
    "stopped": ({"a": JobEnd(0, "", 0), "b": JobEnd(130, "told", 0)}, 130,
                "b: stopped with a checkpoint; continue with --resume"),
    "failed": ({"a": JobEnd(1, "no memory", 2), "b": JobEnd(130, "", 0)}, 1, "a: failed: no memory"),
    "bad input": ({"a": JobEnd(1, "x", 0), "b": JobEnd(2, "no data", 0)}, 2, "b: failed: no data"),
    "left": ({"a": JobEnd(0, "", 0), "b": JobEnd(130, "left", 0, left=True)}, 0,
             "b: left with a checkpoint, since a plan without it was applied"),
}  # fmt: skip


@pytest.fixture
def nothing_strange(monkeypatch):
    """Groups that are made up here have no documents."""
    nothing = Trust([], {}, [])
    vars(nothing)["digest"] = "d"
    monkeypatch.setattr("rlplan.cli.shared.trust.trust_of", lambda *_: nothing)


@pytest.mark.usefixtures("nothing_strange")
@pytest.mark.parametrize("how", ENDS)
def test_groups_end_with_the_worst_code_of_their_jobs(how, tmp_path, monkeypatch):
    ends, code, said = ENDS[how]
    calls = []
    job = SimpleNamespace(name="a", execution=SimpleNamespace(plan_path=EXAMPLES / "math-32b.yaml"))
    prepared = [SimpleNamespace(key="g1", jobs=[job], rooms=["one"], kind="cuda")]
    monkeypatch.setattr("rlplan.executor.groups.prepare_group.prepare_groups", lambda *_: prepared)
    monkeypatch.setattr("rlplan.executor.groups.group_run.run_groups", lambda *call: calls.append(call) or ends)
    out, plan = tmp_path / "run", EXAMPLES / "groups.yaml"
    text = printed("execute", plan, "--out", out, "--group", "g1", "--steps", "3", code=code)
    assert said in text.splitlines() and text.endswith(f"see: rlplan report {out}\n")
    [(groups, folder, alone, options, view, _)] = calls
    assert (groups, folder, alone, options) == (prepared, out, True, Options(3)) and isinstance(view, GroupView)
    found = data("execute", plan, "--out", out, code=code)
    assert found["groups"] == ["g1"] and found["finished"] is (code == 0) and calls[1][2] is False
    for name, end in ends.items():
        reason = "" if end.left or not end.code else end.reason
        row = {"finished": end.code == 0, "left": end.left, "reason": reason, "restarts": end.restarts}
        assert found["jobs"][name] == row


@pytest.mark.usefixtures("nothing_strange")
def test_a_dry_run_of_groups_names_jobs_nodes_and_what_lacks(monkeypatch, tmp_path):
    job = SimpleNamespace(name="a", execution=SimpleNamespace(plan_path=EXAMPLES / "math-32b.yaml"))
    prepared = [SimpleNamespace(key="g1", jobs=[job], rooms=["one", "two"], kind="cuda")]
    lacks = []
    monkeypatch.setattr("rlplan.executor.groups.prepare_group.prepare_groups", lambda *_: prepared)
    monkeypatch.setattr(
        "rlplan.executor.placement.live_checks.live_check",
        lambda rooms, kind: LiveCheck([], lacks[0] if lacks else None, in_cluster=True),
    )
    dry = ("execute", EXAMPLES / "groups.yaml", "--dry-run")
    assert printed(*dry).endswith("are in order: g1 with a, on 2 nodes\n")
    trust = {"reach": [], "digest": "d", "of_others": []}
    assert data(*dry) == {"groups": {"g1": ["a"]}, "findings": [], "shortage": None, "ok": True, "trust": trust}
    shutil.copytree(EXAMPLES, tmp_path / "site")
    (tmp_path / "site" / "rlplan.policy.yaml").write_text("rlplan_policy: 1\nmax_usd_per_hour: 1\n")
    broken = data("execute", tmp_path / "site" / "groups.yaml", "--dry-run", code=1)
    assert not broken["ok"] and ["[policy-usd-per-hour]" in text for text in broken["findings"]] == [True]
    lacks.append("no node")
    assert printed(*dry, code=1) == "digest  d\ncluster in RAY_ADDRESS: no node\n"
    assert not data(*dry, code=1)["ok"]
    lacks.clear()
    finding = Finding("train-memory", "p.yaml", 3, "", "too much")
    monkeypatch.setattr("rlplan.cli.shared.findings.memory_findings", lambda plan: [finding])
    assert printed(*dry, code=1) == "p.yaml:3: [train-memory] too much\ndigest  d\n"
    assert data(*dry, code=1)["findings"] == ["p.yaml:3: [train-memory] too much"]


# -- who runs where ----------------------------------------------------------------------------------------------------


def test_each_node_says_whose_devices_it_has():
    trainers = Room("h800", 1, 8, 10)
    placed = place(Room("h20", 2, 8, 10), {4: ["a", "b", "c"]}, {"math": 3}, 3, trainers)
    assert placement_lines(placed, ["10.0.0.7", None]) == [
        "node 0 of pool h20: 10.0.0.7",
        "  devices 0-3: engine a",
        "  devices 4-7: engine b",
        "node 1 of pool h20",
        "  devices 0-3: engine c",
        "  3 reward workers: 0-2",
        "node 2 of pool h800",
        "  devices 0-2: trainer math, ranks 0-2",
    ]
    first, second, third = placement_data(placed, [])
    assert first == {
        "node": 0, "pool": "h20", "address": None, "engines": {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}, "trainers": {},
        "reward_workers": [],
    }  # fmt: skip
    assert third["trainers"] == {"math": {0: [0], 1: [1], 2: [2]}} and second["engines"] == {"c": [0, 1, 2, 3]}


# -- the lines on the way ----------------------------------------------------------------------------------------------


def step(number, kind="short", total_s=2.0, **failures):
    return SimpleNamespace(
        step=number, kind=kind, total_s=total_s, rollout_s=1.5, train_s=0.25, sync_s=0.125, reward_exposed_s=0.0625,
        reward_mean=0.5, max_tokens=99, deferred=3, reward_failures=failures, ages=[2, 0] * (kind == "long"),
        waits=[3, 1] * (kind == "long"),
    )  # fmt: skip


def test_each_step_is_a_line_where_there_is_no_terminal():
    plan, out = load_plan(EXAMPLES / "cpu-demo.yaml"), io.StringIO()
    rounds = plan.predicted.rounds
    with LiveView({"a": plan}, 5, console=Console(file=out, width=40)) as view:
        view.phase("starting engines")
        view.round_begins("a", "short", 1, lambda: pytest.fail("nobody sees it"))
        view.step_done("a", step(1, infra_failed=2))
        view.step_done("a", step(2, "long"))
    lines = out.getvalue().splitlines()
    parts = "rollout 1.50  train 0.25  sync 0.12  reward 0.500  longest 99  deferred 3"
    left = [f"  about {duration(time_left_s(plan, done, 5))} left" for done in ([step(1)], [step(1), step(2, "long")])]
    assert lines == [
        "starting engines",
        f"a 1/5 short   2.00 s (predicted {rounds.short.step_s.mean:.2f})  {parts}{left[0]}",
        "a step 1: infra_failed of 2 samples; the report says why",
        f"a 2/5 long    2.00 s (predicted {rounds.long.step_s.mean:.2f})  {parts}  queue of 2, oldest 2 long rounds"
        f"  waited up to 3{left[1]}",
    ]
    with LiveView({"a": plan}, 5, quiet=True, console=Console(file=out, width=40)) as view:
        view.step_done("a", step(1))
    assert out.getvalue().splitlines() == lines


def test_a_terminal_has_a_row_for_each_run_and_the_round_below():
    plan, out = load_plan(EXAMPLES / "cpu-demo.yaml"), io.StringIO()
    console = Console(file=out, width=150, force_terminal=True, color_system=None, legacy_windows=False)
    with LiveView({"a": plan, "b": plan}, 5, console=console) as view:
        view.step_done("a", step(1, total_s=2.0))
        view.step_done("a", step(2, total_s=3.0))
        view.round_begins("a", "long", 3, lambda: SimpleNamespace(decoding=4, finished=5, scored=6, aborted=7))
        view.note("an engine was replaced")
        view._live.refresh()  # as its thread does twice a second
        drawn = out.getvalue()
        view.phase("saving")
        view._live.refresh()
    assert "an engine was replaced" in drawn and "saving" in out.getvalue()[len(drawn) :] and "saving" not in drawn
    assert "long round" not in out.getvalue()[len(drawn) :]
    mode, mean, long = plan.job.bias.mode, plan.predicted.step_s.mean, plan.predicted.rounds.long.step_s.mean
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).splitlines()]
    assert ["a", mode, "2.50", f"{mean:.2f}", "1.50", "0.06", "0.25", "0.12", "0.500", "99", "3"] in rows
    assert ["b", mode, "-", f"{mean:.2f}", *["-"] * 7] in rows
    clean = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    assert re.search(r"a +\S+ +step 2 of 5 +about \d+ s left", clean) and re.search(r"b +step 0 of 5 +about", clean)
    assert re.search(
        rf"a step 3, long round: +\d+\.\d of {long:.1f} s; 4 decoding, 5 finished, 6 scored, 7 aborted", drawn
    )


def test_a_jobs_slowdown_in_a_group_is_beside_its_bound(monkeypatch, capsys):
    now_s = iter([100.0, 190.0, 300.0, 400.0, 490.0])
    monkeypatch.setattr(group_live.time, "monotonic", lambda: next(now_s))
    members = groups_plan({"g1": group(["a"])}).groups["g1"].jobs
    view = GroupView(9)
    view.phase("starting")
    view.jobs(members)
    view.reported("a", {"tell": "note", "text": "hello"})

    def done(number):
        seconds = {"total_s": 90.0, "rollout_s": 60.0, "train_s": 30.0, "reward_mean": 0.25}
        view.reported("a", {"tell": "step", "step": number, "kind": "short", **seconds})

    for number in (1, 2, 3):
        done(number)
    view.jobs({"a": members["a"].model_copy(update={"pace_s": 1.0})})  # in another place it is measured anew
    for number in (4, 5):
        done(number)
    parts = "short  90.00 s  rollout 60.00  train 30.00  reward 0.250"
    assert capsys.readouterr().out.splitlines() == [
        "starting", "a: hello", f"a 1/9 {parts}", f"a 2/9 {parts}  1.00x alone (at most 1.50)",
        f"a 3/9 {parts}  1.11x alone (at most 1.50)", f"a 4/9 {parts}", f"a 5/9 {parts}  1.00x alone (at most 1.50)",
    ]  # fmt: skip
