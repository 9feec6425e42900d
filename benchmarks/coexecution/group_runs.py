"""Kills of a group's processes while it runs, and whether anything was lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rlplan.executor.example.write import write_example
from rlplan.executor.rewards.keyhunt import score
from rlplan.planner.groups.simulate.first_steps import (
    common_span,
    first_slowdowns,
    step_ends,
    step_seconds,
    steps_within,
)
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.groups_plan import load_groups_plan
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.groups.group_journal import GROUPS_COPY, GroupJournal, load_journal, read_placed_job
from rlplan.traces.groups.groups_folder import MOVES, moves_of
from rlplan.traces.run_log import TRACE, RunLog, read_run
from rlplan.traces.trace import read_trace

from ..example_plans import change_job, change_pool, shipped_plan, write_document
from ..faults.driver import MARK, Process, marked_processes
from ..faults.verdict import off_policy, trained
from .core_speed import CoreSpeed

EVERY_S = 4.0, 12.0
"""Least and most seconds between two kills."""

STALL_S = 20
RUN_S = 3600.0
VICTIMS = {
    "job driver": "member_process",
    "engine": "ray::RolloutEngine",
    "engine core": "VLLM::EngineCor",
    "trainer rank": "ray::Trainer",
    "permit actor": "ray::PermitActor",
}
"""Kinds of processes, and what their command lines hold."""


def under_kills(plan: Path, alone: Mapping[str, Path], out: Path, steps: int, kills: int) -> dict[str, Any]:
    """Execute a plan of groups for as many steps as its jobs ran alone, kill its processes, and compare.

    A run that ends before there were so many kills is executed anew in a new folder. Raises RunFailed if a run does not
    end.
    """
    rng, killed, lost, double, violations, runs = random.Random(0), Counter[str](), 0, 0, 0, 0
    while killed.total() < kills:
        runs += 1
        folder = out / str(runs)
        killed += _killed_run(plan, folder, steps, kills - killed.total(), rng)
        for name, reference in alone.items():
            log, wanted = read_run(folder / "g1" / name / TRACE), trained(read_run(reference / TRACE))
            actual = trained(log)
            lost += (wanted - actual).total()
            double += (actual - wanted).total()
            violations += off_policy(log)
    return {
        "kills": killed.total(), "killed": dict(killed), "lost": lost, "double": double, "off_policy": violations,
        "runs_under_kills": runs,
    }  # fmt: skip


def _killed_run(plan: Path, out: Path, steps: int, most: int, rng: random.Random) -> Counter[str]:
    out.parent.mkdir(parents=True, exist_ok=True)
    token, killed, log = uuid.uuid4().hex, Counter[str](), out.parent / f"{out.name}.log"
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", str(plan), "--steps", str(steps), "--out", str(out)]
    command += ["--checkpoint-every", "1", "--stall-timeout", str(STALL_S), "--restarts-per-hour", "100"]
    with log.open("w") as file:
        # On a Ray of its own, whose processes inherit the mark.
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {MARK: token}
        driver = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    began = time.monotonic()
    try:
        while driver.poll() is None:
            if time.monotonic() - began > RUN_S:
                raise RunFailed(f"a group under kills did not end within {RUN_S:.0f} s; see {log}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(rng.uniform(*EVERY_S))
            # Nothing is lost before the first step, and a start that is killed shows little.
            if killed.total() < most and "/" in log.read_text() and (kind := _kill_one(token, rng)) is not None:
                killed[kind] += 1
        if driver.returncode:
            raise RunFailed(f"a group under kills ended with exit code {driver.returncode}; see {log}")
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
    return killed


def _kill_one(token: str, rng: random.Random) -> str | None:
    """Kill a random process of a random kind; returns the kind, None if there was none."""
    kind = rng.choice(sorted(VICTIMS))
    able = [process for process in marked_processes(token) if VICTIMS[kind] in process.command]
    if not able:
        return None
    chosen: Process = rng.choice(able)
    with contextlib.suppress(ProcessLookupError):
        os.kill(chosen.pid, signal.SIGKILL)
    return kind


# The jobs: the demo's model under different loads, with trainers on a pool of their own, and their workload.

SAMPLES_PER_PROMPT, MICRO_BATCH_TOKENS = 8, 8192
SLOW_REWARD_S = 0.004
STATE_BYTES, WARM_S = 500_000_000, 0.05
"""What a job's phase holds in host memory between turns (nothing leaves it on a CPU), and seconds of a switch, which
the workload states. Seconds of a start are those of the runs alone."""


class Load(NamedTuple):
    """A job's load: prompts of a step, cap of a response, whether a reward takes SLOW_REWARD_S, bound on slowdown."""

    prompts: int
    most_tokens: int
    slow_reward: bool
    slo: float


LOADS: Mapping[int, Mapping[str, Load]] = {
    2: {"short": Load(64, 96, False, 1.6), "brief": Load(72, 64, False, 1.6)},
    3: {"short": Load(64, 96, False, 2.4), "brief": Load(72, 64, False, 2.4), "slow": Load(56, 64, True, 2.4)},
}
"""Jobs by the number of them in a group. Answers are short, so that training is about as long as decoding: of jobs that
decode three quarters of the time two share two cores no better than 1.33 times."""


MOVING: Mapping[str, Load] = {
    "short": LOADS[3]["short"], "middle": Load(64, 128, False, 2.4), "brief": LOADS[3]["brief"],
}  # fmt: skip
"""Jobs that join and leave."""


def slow_score(prompt: str, response: str, answer: Any = None) -> float:
    """The demo's reward, after a while of computing nothing, as a call of a service is."""
    import time

    time.sleep(SLOW_REWARD_S)
    return score(prompt, response, answer)


def write_jobs(folder: Path, loads: Mapping[str, Load]) -> dict[str, Path]:
    """Write each job with its plan into `folder/NAME`; returns the plans by name."""
    first = folder / next(iter(loads))
    write_example(first)
    for name in loads:
        if not (folder / name).exists():
            shutil.copytree(first, folder / name)
    return {name: _write(folder / name, name, load) for name, load in loads.items()}


def _write(folder: Path, name: str, load: Load) -> Path:
    rollout = {
        "prompts_per_step": load.prompts,
        "samples_per_prompt": SAMPLES_PER_PROMPT,
        "max_response_tokens": load.most_tokens,
    }
    reward = {"function": f"{__name__}:slow_score"} if load.slow_reward else {}
    change_job(folder, name=name, rollout=rollout, reward=reward)
    change_pool(folder, 1, 1)
    plan = shipped_plan(folder, "sync").model_dump(mode="json")
    change_pool(folder, 1, 1, train_pool=True)
    short = plan["job"]["rounds"]["short"]
    short["rollout"] |= {"engines": 1, "tp": 1, "max_num_seqs": load.prompts * SAMPLES_PER_PROMPT}
    short["train"] |= {"dp": 1, "tp": 1, "sp": 1, "micro_batch_tokens": MICRO_BATCH_TOKENS}
    short["train"] |= {"recompute": "full", "offload": False}
    plan["job"]["placement"] = {"train_pool": "train", "streams": False}
    return write_document(folder, "plan", plan)


def write_workload(folder: Path, loads: Mapping[str, Load], runs: Mapping[str, Path], interference: float) -> Path:
    """Write the workload of jobs whose runs alone are `runs`, below `folder`, on cores that slow each other by
    `interference`; returns its path."""
    first = next(iter(loads))
    dump(load_cluster(folder / first / "cluster.yaml"), folder / "cluster.yaml")
    phase = {"nodes": 1, "resident_bytes": STATE_BYTES, "warm_s": WARM_S}
    workload = {
        "rlplan_workload": 1,
        "cluster": "cluster.yaml",
        "rules": {"interference": round(interference, 3)},
        "jobs": {
            name: {
                "slo": load.slo,
                "source": {"run": runs[name].relative_to(folder).as_posix()},
                "phases": {"rollout": {"pool": "main", **phase}, "train": {"pool": "train", **phase}},
            }
            for name, load in loads.items()
        },
    }
    dump(Workload.model_validate(workload), folder / "workload.yaml")
    return folder / "workload.yaml"


def names(counts: Sequence[int]) -> dict[str, Load]:
    """All jobs of groups of these sizes; a name has the same load in all of them, but for its bound."""
    return {name: load for count in counts for name, load in LOADS[count].items()}


# What a job took alone, in work: seconds of each phase times the speed of the core that it ran on meanwhile.

WARM = 2
"""Steps at the start that are not measured: engines and allocators warm up in them."""


class AloneRun(NamedTuple):
    """A job's run alone, which is complete.

    Attributes:
        log: its trace.
        work: of each step, that of the rollout on core 0 and of the training on core 1, in pieces (core_speed.py).
        besides: CPU seconds that the job took for each second of a phase, beside that second of the phase's core: its
            driver, rewards.
    """

    log: RunLog
    work: tuple[tuple[float, float], ...]
    besides: float

    def seconds(self, speeds: Sequence[float]) -> tuple[tuple[float, float], ...]:
        """Seconds of each step's rollout and training on cores of these speeds."""
        return tuple((rollout / speeds[0], train / speeds[1]) for rollout, train in self.work)


def read_alone(run: Path, cores: Sequence[CoreSpeed], background: float) -> AloneRun:
    """Read the run in a folder; `cores`: what cores 0 and 1 did meanwhile; `background`: CPU seconds in a second that
    the machine computes without a job."""
    trace = run / TRACE
    log = read_run(trace)
    assert log.last_t_s is not None
    began_s = trace.stat().st_mtime - log.last_t_s  # its last line was written last
    work, phases_s, computed_s = [], 0.0, 0.0
    for number, phases in enumerate(_phases(log)):
        begin_s, turn_s, end_s = (began_s + second for second in phases)
        work.append(
            ((turn_s - begin_s) * cores[0].speed(begin_s, turn_s), (end_s - turn_s) * cores[1].speed(turn_s, end_s))
        )
        if number >= WARM:
            phases_s += end_s - begin_s
            computed_s += sum(core.computed_s(begin_s, end_s) for core in cores)
    return AloneRun(log, tuple(work), max(0.0, computed_s / phases_s - background - 1.0))


def _phases(log: RunLog) -> Iterator[tuple[float, float, float]]:
    """Of each step: second of the trace in which it began, in which its rollout ended, and in which it ended."""
    for step in log.steps:
        begin_s = step.t_s - step.total_s
        yield begin_s, begin_s + step.rollout_s + step.reward_exposed_s, step.t_s


# What a group's runs took beside the same jobs alone.


def compare(
    groups: Path, alone: Mapping[str, AloneRun], out: Path, cores: Sequence[CoreSpeed], core_interference: float
) -> dict[str, Any]:
    """The figures of one group that was executed into `out`; runs alone by name of the job, all of as many steps.

    Seconds alone are those on cores as fast as they were while the group ran. Cores that both compute slow each other
    by `core_interference`, and a job alone does not suffer that: for it, cores count as faster by that share.
    """
    logs = {name: read_run(out / name / TRACE) for name in alone}
    turns = load_journal(out)
    ends = _ends_s(turns)
    begin_s, end_s = common_span(ends)
    common = steps_within(ends, (begin_s, end_s))
    spans = {name: step_seconds(each, common[name]) for name, each in ends.items()}
    speeds = [core.speed(turns.began_s + begin_s, turns.began_s + end_s) * (1.0 + core_interference) for core in cores]
    steps = {name: run.seconds(speeds) for name, run in alone.items()}
    alone_s = {name: mean(map(sum, each[WARM:])) for name, each in steps.items()}
    wall_s = {name: mean(step.total_s for step in run.log.steps[WARM:]) for name, run in alone.items()}
    plan = load_groups_plan(groups)
    counts = {name: len(each) for name, each in steps.items()}
    seats = [read_placed_job(seat) for seat in turns.first_jobs]
    replayed = step_ends(turns.rule, seats, steps, counts, plan.rules.interference)
    predicted = {name: step_seconds(each, common[name]) / alone_s[name] for name, each in replayed.items()}
    [group] = plan.groups.values()
    planned_s = {name: member.slowdown.alone_s for name, member in group.jobs.items()}
    planned = first_slowdowns(turns.rule, seats, planned_s, counts, plan.rules.interference)
    assert planned is not None, "jobs end enough steps"
    slowdowns = {name: spans[name] / alone_s[name] for name in spans}
    return {
        # Of each job as many steps as fit into the time, in parts too.
        "throughput_ratio": round(sum(alone_s[name] / spans[name] for name in spans), 3),
        "by_the_clock": round(sum(wall_s[name] / spans[name] for name in spans), 3),
        "slowdowns": {name: round(value, 3) for name, value in slowdowns.items()},
        "bounds": {name: group.jobs[name].slowdown.slo for name in spans},
        "bounds_kept": all(slowdowns[name] <= group.jobs[name].slowdown.slo for name in spans),
        "predicted": {name: round(value, 3) for name, value in predicted.items()},
        "prediction_error": round(_error(predicted, slowdowns), 4),
        "planned": {name: round(planned[name], 3) for name in spans},
        "plan_error": round(_error(planned, slowdowns), 4),
        "planned_long_run": {name: round(group.jobs[name].slowdown.mean, 3) for name in spans},
        "same_samples": round(_same({name: run.log for name, run in alone.items()}, logs), 4),
        "alone_s": {name: round(value, 3) for name, value in alone_s.items()},
        "alone_wall_s": {name: round(value, 3) for name, value in wall_s.items()},
    }


def _ends_s(turns: GroupJournal) -> dict[str, list[float]]:
    """By job, the seconds since the group began in which its steps ended: with the ends of their trainings."""
    ends: dict[str, list[float]] = {}
    for turn in turns.spans:
        if turn.phase == "train" and turn.ended:
            ends.setdefault(turn.job, []).append(turn.end_s)
    return ends


def _error(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Largest relative error of a job."""
    return max(abs(predicted[name] / value - 1) for name, value in measured.items())


def _same(alone: Mapping[str, RunLog], together: Mapping[str, RunLog]) -> float:
    wanted, found = (sum((_samples(name, log) for name, log in logs.items()), Counter()) for logs in (alone, together))
    return (wanted & found).total() / wanted.total()


def _samples(name: str, log: RunLog) -> Counter[tuple[Any, ...]]:
    return Counter(
        (name, number, row.prompt, row.sample, row.tokens, row.reward)
        for number, rows in log.samples.items()
        for row in rows
        if row.fate == "trained"
    )


# Jobs that join and leave a group that runs, by `solve --from` and `apply`, which are killed in mid-move.
#
# `short` and `middle` run as one. Then `middle` leaves and `brief` joins; the process of `apply` is killed meanwhile,
# and started again. Then `brief` leaves and `middle` joins again; the driver of the groups is killed meanwhile, and
# `execute --resume` makes the moves that are left. `short` runs all the time.

WAIT_S = 900.0
LOOK_S = 0.2
ENDLESS = 1000
"""Steps of each job; the run is stopped when it has shown what it should."""

RLPLAN = (sys.executable, "-m", "rlplan.cli.main")


def measure_moves(
    folder: Path, loads: Mapping[str, Load], runs: Mapping[str, Path], steps: int, interference: float
) -> dict[str, Any]:
    """The figures; `runs`: of each job alone, `steps` steps. Raises RunFailed if something does not end.

    `moves`: of each job that joined, the seconds of its outage beside the predicted ones (`price_s`), and of each that
    left, those in which it came to the end of its step (`drain_s`); `move_error`: the largest relative error of an
    outage that was not interrupted. `kills`: of `apply` and of the driver. `lost`: trained samples of the runs alone
    that are missing in the jobs that were there at both ends.
    """
    folder.mkdir(parents=True)
    first = _solve(folder, loads, runs, interference, ("short", "middle"), None)
    out = folder / "runs"
    with _driver(folder, first, out) as driver:
        for name in ("short", "middle"):
            _wait(f"{name} has no second step", driver, lambda name=name: _steps(out / "g1" / name) >= 2)
        plan = _solve(folder, loads, runs, interference, ("short", "brief"), out / GROUPS_COPY)
        apply = subprocess.Popen([*RLPLAN, "apply", str(plan), "--out", str(out)], stderr=subprocess.DEVNULL)
        _wait("no job was started by apply", driver, lambda: "enter" in _move_events(out))
        apply.kill()  # in mid-move
        apply.wait()
        undisturbed = _applied(plan, out)
        _wait("brief makes no step", driver, lambda: _steps(out / "g1" / "brief") >= 2)
        back = _solve(folder, loads, runs, interference, ("short", "middle"), out / GROUPS_COPY)
        apply = subprocess.Popen([*RLPLAN, "apply", str(back), "--out", str(out)], stderr=subprocess.DEVNULL)
        _wait("middle was not started by apply", driver, lambda: _move_events(out).count("enter") >= 2)
        driver.kill()  # in mid-move
        apply.wait(WAIT_S)
    with _driver(folder, back, out, "--resume") as driver:
        _wait("moves are left", driver, lambda: (moves_of(out) or {})["state"] == "applied")
        for name in ("short", "middle"):
            _wait(f"{name} is not done", driver, lambda name=name: _steps(out / "g1" / name) >= steps)
    moves = undisturbed["moves"] + (moves_of(out) or {})["moves"]
    [joined] = [move for move in undisturbed["moves"] if move["to_group"] is not None]
    lost = sum((trained(read_run(runs[name] / TRACE)) - trained(read_run(out / "g1" / name / TRACE))).total()
               for name in ("short", "middle"))  # fmt: skip
    keys = ("job", "from_group", "to_group", "price_s", "outage_s", "drain_s")
    return {
        "moves": [{key: move[key] for key in keys if key in move} for move in moves],
        "move_error": round(abs(joined["price_s"] / joined["outage_s"] - 1), 4),
        "kills": {"apply": 1, "groups' driver": 1},
        "lost": lost,
    }


def _solve(
    folder: Path,
    loads: Mapping[str, Load],
    runs: Mapping[str, Path],
    interference: float,
    names: Sequence[str],
    previous: Path | None,
) -> Path:
    """Solve the workload of these jobs, from the plan that runs if there is one; returns the plan."""
    count = len(list(folder.glob("plan-*.yaml")))
    workload = write_workload(folder.parent, {name: loads[name] for name in names}, runs, interference)
    named = workload.rename(folder.parent / f"moves-{count}.yaml")
    plan = folder / f"plan-{count}.yaml"
    command = [*RLPLAN, "solve", str(named), "-o", str(plan), *(("--from", str(previous)) if previous else ())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode:
        raise RunFailed(f"a workload could not be solved:\n{done.stderr}")
    return plan


@contextlib.contextmanager
def _driver(folder: Path, plan: Path, out: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver of the groups; at the end it is asked to stop, and killed if it does not."""
    command = [*RLPLAN, "execute", str(plan), "--steps", str(ENDLESS), "--out", str(out), "--checkpoint-every", "1"]
    with (folder / "driver.log").open("a") as log:
        driver = subprocess.Popen([*command, *more], stdout=log, stderr=log)
    try:
        yield driver
        driver.terminate()
        driver.wait(WAIT_S)
    finally:
        driver.kill()
        driver.wait()


def _applied(plan: Path, out: Path) -> dict[str, Any]:
    """Apply a plan, and return its moves."""
    done = subprocess.run(
        [*RLPLAN, "apply", str(plan), "--out", str(out), "--json"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RunFailed(f"rlplan apply ended with exit code {done.returncode}:\n{done.stderr}")
    moves: dict[str, Any] = json.loads(done.stdout)
    return moves


def _wait(what: str, driver: subprocess.Popen[bytes], until: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not until():
        if driver.poll() is not None or time.monotonic() > deadline:
            raise RunFailed(f"{what} although the driver {'ended' if driver.poll() is not None else 'runs'}")
        time.sleep(LOOK_S)


def _steps(run: Path) -> int:
    return len(read_run(run / TRACE).steps) if (run / TRACE).is_file() else 0


def _move_events(out: Path) -> list[str]:
    return [event["event"] for event in read_trace(out / MOVES)] if (out / MOVES).is_file() else []
