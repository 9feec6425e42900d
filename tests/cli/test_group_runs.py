"""Groups that run or ran: `rlplan apply`, `status`, `report` and `tune` on their folder, and the driver's re-plans."""

import json
import shutil
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from rlplan.cli import apply, status
from rlplan.cli.execute import write_replan
from rlplan.executor.groups.bound_driver import ReplanInputs
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.plans.phrases.numbers import NONE
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.yaml.yaml_io import dump, sha256_file
from rlplan.rounds.permits.permit_events import PlacedJob
from rlplan.traces.groups.group_journal import GROUP_JOURNAL, GROUPS_COPY
from rlplan.traces.groups.groups_folder import MOVES, requests
from rlplan.traces.run_log import TRACE

from ..group_documents import group, groups_plan, member
from ..replanned import Running
from .command_line import data, printed, refused, rlplan
from .conftest import EXAMPLES
from .run_folders import BEGUN, MOVE, WANTED, write


def test_the_state_of_groups_is_data_and_a_page_too(runs):
    found = data("status", runs)
    assert {name: row["bound"] for name, row in found["jobs"].items()} == {"a": "alarm", "b": None}
    assert found["moves"]["moves"][0]["outage_s"] == 50.0 and found["proposed"]["moves"] == 1
    assert not found["running"] and found["groups"]["g1"]["held"] == []
    report, page = data("report", runs), runs.parent / "page.html"
    assert report["moves"]["state"] == "applied" and [*report["groups"]["g1"]["jobs"]] == ["a", "b"]
    assert printed("report", runs, "--html", page).endswith(f"page: {page}\n")
    assert "<html" in page.read_text()[:100]


def test_status_watches_while_a_driver_runs(runs, monkeypatch):
    running, slept = [True, True, False], []
    monkeypatch.setattr("rlplan.traces.groups.groups_status.driver_runs", lambda out: running.pop(0))
    monkeypatch.setattr(status.time, "sleep", slept.append)
    text = printed("status", runs, "--watch", "--every", "3")
    assert text.count("g1 running") == 2 and text.count("g1 stopped") == 1 and slept == [3.0, 3.0]
    held, waits = text.splitlines()[2:4]
    assert held.split()[:4] == ["a", "g1", "rollout", "for"] and waits.split()[:5] == ["b", "g1", "waits", "for", "a"]
    running += [True]
    printed("status", runs)
    assert slept == [3.0, 3.0], "without --watch it looks once"


def test_a_job_that_is_still_to_join_has_not_ended(runs):
    write(runs / MOVES, [BEGUN, WANTED])
    assert data("status", runs)["jobs"]["b"]["state"] == "to do"


def test_a_job_on_its_way_out_is_told(runs):
    for folder in (runs, runs / "g1"):
        dump(groups_plan({"g1": group({"b": member()})}), folder / GROUPS_COPY)
    leaves = WANTED | {"moves": [{**MOVE, "job": "a", "from_group": "g1", "to_group": None}]}
    write(runs / MOVES, [BEGUN, leaves, {"event": "drain", "t_s": 1.0, "id": "r", "job": "a"}])
    jobs = data("status", runs)["jobs"]
    assert jobs.keys() == {"a", "b"} and jobs["a"]["slo"] is None
    assert "stopping" in printed("status", runs) and "stopping" in printed("report", runs)
    assert "a is to leave after 0 steps" in printed("report", runs)


def test_a_plan_not_solved_from_the_running_one_is_refused(runs, tmp_path):
    solve = f"was solved anew; solve with --from {runs / GROUPS_COPY}"
    refused(rlplan("apply", runs / GROUPS_COPY, "--out", runs), solve)
    file = {"path": "old.yaml", "sha256": "3" * 64}
    inputs = groups_plan({"g1": group({"a": member()})}).inputs.model_dump(mode="json") | {"previous": file}
    dump(groups_plan({"g1": group({"a": member()})}, inputs=inputs), tmp_path / "other.yaml")
    other = "was solved from another plan than the one that runs"
    refused(rlplan("apply", tmp_path / "other.yaml", "--out", runs, "--dry-run"), other)


# -- rlplan apply, with a driver that is played ------------------------------------------------------------------------


class Driver:
    """Plays the driver of the groups: each look finds in the journal what it `says` next, or, of None, its end."""

    def __init__(self, out, plan):
        self.out, self.plan, self.says, self.runs, self.now_s = out, plan, [], True, 0.0
        self.wanted = WANTED | {"plan": str(plan), "sha256": sha256_file(plan)}

    def look(self, seconds):
        event = self.says.pop(0)
        self.now_s += 101.0 if event == "late" else seconds
        if event is None:
            self.runs = False
        elif event != "late":
            for request in requests(self.out):
                request.unlink()
            with (self.out / MOVES).open("a") as journal:
                journal.write(json.dumps({"t_s": 2.0, "id": "r", **event}) + "\n")

    def apply(self, *options, code=0):
        result = rlplan("apply", self.plan, "--out", self.out, *options)
        assert result.returncode == code, result.stderr + result.stdout
        return result


@pytest.fixture
def driver(runs, monkeypatch):
    plan = runs.parent / "new.yaml"
    dump(groups_plan({"g1": group({"a": member(), "b": member()})}), plan)
    made = Driver(runs, plan)
    write(runs / MOVES, [BEGUN])

    def planned_change(out, path, ended):
        assert (out, path, ended) == (runs, plan, set())
        return SimpleNamespace(groups={}, sha256=made.wanted["sha256"], rows=lambda: [MOVE])

    for module in ("groups.groups_status", "run_log"):
        monkeypatch.setattr(f"rlplan.traces.{module}.driver_runs", lambda out: made.runs)
    monkeypatch.setattr("rlplan.executor.groups.group_change.planned_change", planned_change)
    monkeypatch.setattr(apply.uuid, "uuid4", lambda: SimpleNamespace(hex="r"))
    monkeypatch.setattr(apply.time, "sleep", made.look)
    monkeypatch.setattr(apply.time, "monotonic", lambda: made.now_s)
    return made


def test_moves_are_shown_as_they_are_made(driver):
    driver.says = [
        driver.wanted, {"event": "enter", "job": "b"}, {"event": "short", "job": "b", "reason": "1 node lacks"},
        {"event": "enter", "job": "b"}, {"event": "in", "job": "b", "start_s": 5.0, "outage_s": 7.0},
        {"event": "applied", "seconds": 9.0},
    ]  # fmt: skip
    result = driver.apply()
    assert result.stderr.splitlines() == [
        "b: starting", "b: lacks nodes: 1 node lacks", "b: starting", "b: made after 7.00 s of outage",
    ]  # fmt: skip
    assert result.stdout.startswith(f"plan {driver.plan}: applied in 9.00 s\n")
    again = json.loads(driver.apply("--json").stdout)
    assert again["state"] == "applied" and again["moves"][0]["outage_s"] == 7.0, "it is not asked for twice"


def test_a_failed_move_is_the_exit_code(driver):
    write(driver.out / MOVES, [BEGUN, driver.wanted])  # it was asked for before
    driver.says = [{"event": "failed", "job": "b", "reason": "no memory"}, {"event": "applied", "seconds": 9.0}]
    assert driver.apply(code=1).stderr == "b: failed: no memory\n"


def test_a_dry_run_shows_the_moves_and_asks_nobody(driver):
    lines = driver.apply("--dry-run").stdout.splitlines()
    assert lines[0] == f"plan {driver.plan}: not applied" and requests(driver.out) == []
    assert lines[2].split() == ["b", NONE, "g1", "to", "do", "40.0", "s", NONE, NONE]
    write(driver.out / MOVES, [BEGUN, driver.wanted])
    assert driver.apply("--dry-run").stdout.startswith(f"plan {driver.plan}: under way\n")
    write(driver.out / MOVES, [BEGUN])
    driver.runs = False
    refused(driver.apply(code=2), "runs: no driver runs its groups")
    assert requests(driver.out) == []


@pytest.mark.parametrize(
    ("says", "options", "code", "said"),
    [
        ([{"event": "refused", "reason": "no room"}], [], 2, "new.yaml: the driver of {at} refuses it: no room"),
        (
            [None],
            [],
            1,
            "run failed: the driver has ended, and the plan is not applied; resume the groups with the plan",
        ),
        (["late"], [], 1, "run failed: the driver did not answer within 60 s, and the plan is not applied"),
        ([WANTED, None], [], 1, "run failed: the driver has ended; rlplan execute {at}"),
        (
            [WANTED, "late"],
            ["--timeout", "100"],
            1,
            "run failed: moves are left after 100 s, and go on; see rlplan status",
        ),
    ],
)
def test_what_a_driver_does_not_do_is_one_line(says, options, code, said, driver):
    driver.says = [driver.wanted if event is WANTED else event for event in says]
    result = driver.apply(*options, code=code)
    assert result.stderr.count("\n") == 1 and said.format(at=driver.out).removesuffix(str(driver.out)) in result.stderr
    assert requests(driver.out) == [], "what nobody takes is taken back"


# -- re-plans ----------------------------------------------------------------------------------------------------------

POLICY = """\
rlplan_policy: 1
auto_apply: {most_moves: 5, most_price_s: 9000.0, most_usd_per_hour_more: 500.0, least_hours_between: 1.0}
"""


@pytest.fixture
def running(tmp_path):
    made = Running(tmp_path)
    (tmp_path / "runs").mkdir()
    shutil.copy(made.plan_path, tmp_path / "runs" / "groups.yaml")
    return made


def proposed(running, ended=frozenset(), hours_since=None):
    """What is proposed when b's turns take longer than planned."""
    out = running.plan_path.parent / "runs"
    journals = running.journals({"b": (1.6, 1.6)})
    given = ReplanInputs(running.plan_path, out / "groups.yaml", journals, {}, ended, hours_since)
    return write_replan(given, out / "proposed-1.yaml")


def test_a_replan_is_applied_within_the_limits_of_the_policy(running):
    made = proposed(running)
    assert made.moves >= 1 and made.price_s > 0 and not made.applies
    assert made.reason == "no rlplan.policy.yaml allows it"
    new = load_groups_plan(made.path)
    assert len(new.moves) == made.moves and new.inputs.measured
    assert made.price_s == pytest.approx(sum(move.price_s for move in new.moves))
    policy = running.plan_path.with_name("rlplan.policy.yaml")
    policy.write_text(POLICY)
    assert proposed(running).applies and "go with it" not in proposed(running, ended=frozenset({"b"})).reason
    soon = proposed(running, hours_since=0.5)
    assert not soon.applies and "least_hours_between: 1" in soon.reason
    policy.write_text(POLICY.replace("most_price_s: 9000.0", "most_price_s: 1.0"))
    dear = proposed(running)
    assert not dear.applies and "rlplan.policy.yaml:2 has most_price_s: 1" in dear.reason
    policy.write_text(POLICY)
    running.workload.write_text(running.workload.read_text().replace("slo: 1.15", "slo: 1.14"))
    edited = proposed(running)
    assert not edited.applies and "its workload was edited since the running plan was solved" in edited.reason


# -- reports -----------------------------------------------------------------------------------------------------------

SECONDS = {"a": (60.0, 30.0), "b": (50.0, 40.0), "c": (70.0, 20.0)}


@pytest.fixture
def ran(tmp_path):
    """A folder of three jobs, each of whose turns took what the plan says, eight steps each."""
    dump(groups_plan({"g1": group({job: member(slo=3.0) for job in SECONDS})}), tmp_path / GROUPS_COPY)
    now_s = [50.0]
    seats = [PlacedJob(job, ((0,), (1,)), SECONDS[job], pace_s=200.0) for job in SECONDS]
    live = LivePermits("g1", "multi_rate", seats, tmp_path / GROUP_JOURNAL, lambda: now_s[0])
    arrivals = {job: live.ready(job, job) for job in SECONDS}
    while live.held:
        ends = {job: phase.begun_s + SECONDS[job][phase.number % 2] for job, phase in live.held.items()}
        job = min(ends, key=lambda name: ends[name])
        now_s[0] = 50.0 + ends[job]
        if live.held[job].number == 15:
            live.done(job, arrivals[job], 15)
            break
        live.done(job, arrivals[job], live.held[job].number)
    live.close()
    return tmp_path


def test_turns_as_long_as_planned_are_as_slow_as_planned(ran):
    report = data("report", ran)["groups"]["g1"]
    for row in report["jobs"].values():
        assert row["slowdown_planned_so_far"] == pytest.approx(row["slowdown"])
        assert row["slowdown_predicted"] == 1.1
    lines = printed("report", ran).splitlines()
    begin_s, end_s = report["together_s"]
    assert lines[0] == (
        f"{ran.name}: group g1 of 3 jobs, permit rule multi_rate; measured while all ran, {end_s - begin_s:.0f} s"
    )
    assert lines[1].split()[:5] == ["steps", "starts", "iteration", "alone", "slowdown"] and "long-run plan" in lines[1]
    for line, (job, row) in zip(lines[2:5], report["jobs"].items(), strict=True):
        assert line.split()[:3] == [job, str(row["steps"]), "1"] and f"{row['slowdown']:.2f}x" in line
        assert line.endswith("breaks its bound") is (row["keeps"] is False)
    units = [f"roll 0 {report['units']['0']['busy']:.0%}", f"train 1 {report['units']['1']['busy']:.0%}"]
    assert lines[5] == f"busy share of each unit: {', '.join(units)}"


def test_a_job_that_came_later_leaves_no_plan_of_the_first_steps(ran):
    dump(groups_plan({"g1": group({job: member(slo=3.0) for job in ("a", "b", "d")})}), ran / GROUPS_COPY)
    lines = (ran / GROUP_JOURNAL).read_text().splitlines()
    last_s = json.loads(lines[-1])["t_s"]
    seat = json.loads(lines[0])["seats"][0] | {"job": "d"}
    more = [{"event": "unseat", "t_s": last_s, "job": "c"}, {"event": "seat", "t_s": last_s, "job": "d", "seat": seat}]
    (ran / GROUP_JOURNAL).write_text("\n".join([*lines, *map(json.dumps, more)]) + "\n")
    found = data("report", ran)["groups"]["g1"]["jobs"]
    assert {row["slowdown_planned_so_far"] for row in found.values()} == {None}
    assert "c left after 8 steps" in printed("report", ran) or "c left after 7 steps" in printed("report", ran)


def test_switches_that_a_run_measured_go_into_its_workload(tmp_path):
    shutil.copytree(EXAMPLES / "groups", tmp_path / "groups")
    path, run = tmp_path / "groups.yaml", tmp_path / "run"
    shutil.copy(EXAMPLES / "groups.yaml", path)
    plan = load_groups_plan(path)
    key = next(key for key, each in plan.groups.items() if "math-7b" in each.jobs)
    (run / "math-7b").mkdir(parents=True)
    shutil.copy(path, run / GROUPS_COPY)
    members = plan.groups[key].jobs
    seats = [PlacedJob(name, (m.rollout.units, m.train.units), (1.0, 1.0)) for name, m in members.items()]
    LivePermits(key, plan.rules.policy, seats, run / GROUP_JOURNAL, lambda: 0.0).close()
    permit = {"event": "permit", "phase": "rollout", "waited_s": 0.0, "switch_out_s": 10.0}
    steps = [{**permit, "t_s": step, "step": step, "switch_in_s": 20.0 + 0.01 * (step % 2)} for step in range(1, 9)]
    write(run / "math-7b" / TRACE, steps)
    tune, out = ("tune", run, "--plan", path), tmp_path / "groups" / "workload.tuned.yaml"
    found = data(*tune)
    assert (found["decision"], found["workload"]) == ("change", str(out)) and "30" in out.read_text()
    assert (out.parent / ".rlplan" / "workload.schema.json").is_file()
    lines = printed(*tune).splitlines()
    assert lines[0].split() == ["switch", "of", "planned", "measured", "error"]
    rows = {tuple(line.split()[:2]): line for line in lines[1:-1]}
    assert rows.keys() == {(name, phase) for name in members for phase in ("rollout", "train")}
    measured, unmeasured = rows["math-7b", "rollout"], rows["math-7b", "train"]
    assert "30.0 s" in measured and measured.endswith("of 8 turns") and unmeasured.endswith("of 0 turns   kept")
    assert lines[-1] == f"change: -> {out}; rlplan solve {out} --from {path} says what to move"
    reported = printed("report", run).splitlines()
    head = next(index for index, line in enumerate(reported) if line.startswith("Seconds of a switch, mean over"))
    assert reported[head + 1].split() == ["decode:", "wake", "sleep", "planned", "train:", "load", "offload", "planned"]
    assert [line.split()[0] for line in reported[head + 2 : -1]] == [*members]
    assert next(line for line in reported[head:] if line.startswith("math-7b")).split()[1:5] == [
        "20.0",
        "s",
        "10.0",
        "s",
    ]
    write(run / "math-7b" / TRACE, steps[:2])
    assert printed(*tune).splitlines()[-1].startswith("keep: no switch differs by more than its error")
    assert data(*tune)["workload"] is None
    refused(rlplan("tune", run), "run: is a run of groups; name the plan that it runs with --plan groups.yaml")
    refused(rlplan(*tune, "--out", tmp_path / "x.yaml"), "x.yaml: must be in the folder of ")
    refused(rlplan(*tune, "--out", tmp_path / "groups" / "workload.yaml"), "is an input of this command")
    path.write_text(path.read_text() + "# changed\n")
    refused(rlplan(*tune), f"run: runs another plan of groups than {path} is now")
