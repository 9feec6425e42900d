"""Folders of runs that never ran: of a job with a heavy tail, and of groups of which job a decodes and job b joined."""

import json

from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.yaml_io import dump, load
from rlplan.profiles.length_trace import read_lengths
from rlplan.profiles.profile_schema import Profile
from rlplan.traces.groups.group_turns import GROUPS_COPY, TURNS
from rlplan.traces.groups.groups_folder import MOVES

from ..group_documents import group, groups_plan, member
from ..planner.synthetic_run import synthesize
from ..plans.conftest import PLAN
from .command_line import printed
from .solved_folder import edit, sha

REPORTED = PLAN.replace("DECISIONS", "a" * 64)
for _name in ("CLUSTER", "JOB", "PROFILE", "LENGTHS"):
    REPORTED = REPORTED.replace(f"{_name}_SHA", "a" * 64)

MOVE = {"job": "b", "from_group": None, "to_group": "g1", "price_s": 40.0}
BEGUN = {"event": "groups", "t_s": 0.0, "began_s": 1.7e9}
WANTED = {"event": "wanted", "t_s": 1.0, "id": "r", "plan": "b.yaml", "sha256": "0" * 64, "moves": [MOVE]}
JOINED = [
    {"event": "in", "t_s": 51.0, "id": "r", "job": "b", "start_s": 50.0, "outage_s": 50.0},
    {"event": "applied", "t_s": 51.0, "id": "r", "seconds": 50.0},
]


def write_runs(out):
    """Write a folder of a group whose job a decodes and whose job b joined; the driver is gone."""
    plan = groups_plan({"g1": group({"a": member(), "b": member()})})
    (out / "g1").mkdir(parents=True)
    for folder in (out, out / "g1"):
        dump(plan, folder / GROUPS_COPY)
    turn = {"job": "a", "turn": 0, "phase": "rollout", "begun_s": 1.0, "units": [0], "resident": True}
    write(out / "g1" / TURNS, [
        {"event": "group", "t_s": 0.0, "group": "g1", "rule": "multi_rate", "began_s": 1.7e9,
         "seats": [{"job": job, "units": [[0], [1]]} for job in "ab"]},
        {"event": "ready", "t_s": 1.0, "job": "a", "process": "p"},
        {"event": "turns", "t_s": 1.0, "begun": [turn], "waits_for": {"b": ["a"]}},
    ])  # fmt: skip
    write(out / MOVES, [
        BEGUN, WANTED, *JOINED,
        {"event": "bound", "t_s": 60.0, "job": "a", "group": "g1", "state": "alarm", "slowdown": 1.4, "recent": 1.6,
         "slo": 1.5, "breaks_in": 3},
        {"event": "proposed", "t_s": 61.0, "id": "q", "plan": "proposed-1.yaml", "moves": 1, "price_s": 30.0,
         "applies": False, "reason": "no rlplan.policy.yaml allows it"},
    ])  # fmt: skip
    return out


def write(path, events):
    """Write a journal or a trace."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def run_plan(folder, name, trace, **sizes):
    """Run a folder's plain plan as if nobody had forced it, in a folder below; lengths are of `trace`."""
    edit(folder / "plan.yaml", "  forced_mode: sync\n", "")
    documents = load_plan(folder / "plan.yaml"), load_job(folder / "job.yaml"), load(folder / "profile.yaml", Profile)
    synthesize(folder / name, *documents, trace, prompts=100, plan_path="../plan.yaml", **sizes)


def write_run_of_tail(folder):
    """Give a solved job a heavy tail and a plain plan, and run that in `run`."""
    lengths = folder / "lengths.jsonl"
    was = sha(lengths)
    rows = [json.loads(line) for line in lengths.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["tokens"] = 60 if number % 17 == 0 else 3 + number % 4
    lengths.write_text("".join(json.dumps(row) + "\n" for row in rows))
    edit(folder / "profile.yaml", was, sha(lengths))
    printed("solve", folder, "--mode", "sync", "--bias-budget", 0)
    run_plan(folder, "run", read_lengths(lengths, cap_tokens=64), steps=60)
