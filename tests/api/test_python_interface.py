"""`from rlplan import solve, simulate, check, diff`: the results and the errors of the command line, as objects."""

import ast
import json
import math
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rlplan
from rlplan import Cluster, InputError, Job, Plan, Profile, check, diff, dump, load, read_lengths, simulate, solve
from rlplan.plans.schema.job import load_job

from ..cli.command_line import data, printed
from ..cli.command_line import rlplan as command
from ..cli.few_candidates import few_candidates
from ..cli.solved_folder import harmed, write_profiled, write_shipped

ROOT = Path(rlplan.__file__).parent
PAGE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)
POLICY = "rlplan_policy: 1\nmax_nodes: {main: 1}\n"


@pytest.fixture(scope="module", autouse=True)
def little_is_simulated():
    with few_candidates():
        yield


@pytest.fixture(scope="module")
def solved_once(tmp_path_factory):
    """A folder whose folder `job` has a job, its profile and plan.yaml of `rlplan solve`; nobody changes it."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "job").mkdir()
    write_profiled(folder / "job")
    printed("solve", folder / "job", "--mode", "sync")
    return folder


@pytest.fixture
def here(solved_once, tmp_path, monkeypatch):
    """A copy of it as the current folder."""
    monkeypatch.chdir(shutil.copytree(solved_once, tmp_path / "here"))
    return tmp_path / "here"


def changed(**rollout):
    """The plan of the job with other values under `rollout`."""
    job = load("job/job.yaml", Job)
    return solve(job.model_copy(update={"rollout": job.rollout.model_copy(update=rollout)}), mode="sync", force=True)


def lasting(plan):
    """A plan without what differs from solve to solve."""
    return dump(plan).partition("\nvolatile:")[0]


def test_the_lines_of_the_page_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "job").mkdir()
    write_shipped(tmp_path / "job")
    printed("profile", tmp_path / "job", "--shipped", "Qwen2.5-7B")
    (tmp_path / "team.policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    lines, errors = PAGE
    assert len([line for line in lines.splitlines() if line]) == 5
    names = {}
    exec(lines, names)
    plan, run, checked, change = (names[name] for name in ("plan", "run", "checked", "change"))
    assert isinstance(plan, Plan) and plan == load("job/plan.yaml", Plan)
    assert run.ok and run.figures["all"]["step_s"]["mean"] > plan.predicted.step_s.mean
    assert [(finding.rule, finding.key) for finding in checked.findings] == [("policy-nodes", "predicted.nodes")]
    assert not change.same and change.verdict in change.markdown()
    for result in (plan, run, checked, change):
        assert len(repr(result)) < 500 and repr(result).startswith("<")
    exec(errors, names)
    told = ast.literal_eval(capsys.readouterr().out)
    assert told["exit_code"] == 2 and told["faults"][0]["file"] == "h200.yaml"


def test_results_are_those_of_the_command_line(here, capfd):
    (here / "broken.yaml").write_text("rlplan_job: 1\nname: [\n")
    plan = solve("job", mode="sync", out=here / "new.yaml")
    run = simulate("job/plan.yaml", steps=7, seed=3, set={"plan.job.rounds.short.rollout.max_num_seqs": 2})
    checked = check("job/plan.yaml", "broken.yaml", "job/cluster.yaml", executor=True, max_age_days=1e6)
    change = diff("job/plan.yaml", solve("job", mode="sync", seed=1, out="other.yaml"))
    assert capfd.readouterr() == ("", ""), "nothing is printed"
    assert plan.inputs.job.path == "job/job.yaml" and lasting(plan) == lasting(load(here / "new.yaml", Plan))
    printed("solve", "job", "--mode", "sync", "-o", "by_command.yaml", folder=here)
    assert lasting(load("by_command.yaml", Plan)) == lasting(plan)
    setting = "plan.job.rounds.short.rollout.max_num_seqs=2"
    shown = data("simulate", "job/plan.yaml", "--steps", 7, "--seed", 3, "--set", setting, folder=here)
    assert json.loads(json.dumps(run.as_dict())) == shown
    files = ("job/plan.yaml", "broken.yaml", "job/cluster.yaml", "--executor", "--max-age-days", "1e6")
    assert checked.as_dict() == data("check", *files, code=checked.exit_code, folder=here)
    assert checked.exit_code == 2 and not checked.ok
    shown = data("diff", "job/plan.yaml", "other.yaml", folder=here)
    assert {**change.as_dict(), "new": "other.yaml"} == shown and re.fullmatch(r"<plan-\w+>", change.new)
    assert not change.same and diff("new.yaml", "by_command.yaml").same
    assert diff(None, "new.yaml").as_dict() == data("diff", "none", "new.yaml", folder=here)


def test_objects_are_taken_where_files_are(here):
    job, cluster = load("job/job.yaml", Job), load("job/cluster.yaml", Cluster)
    profile = load("job/profile.yaml", Profile)
    from_files = solve("job", mode="sync")
    from_objects = solve(
        job, cluster=cluster, profile=profile, trace=read_lengths("job/lengths.jsonl", cap_tokens=64), mode="sync"
    )
    assert from_objects.job == from_files.job and from_objects.predicted == from_files.predicted
    assert re.fullmatch(r"job/<job-[0-9a-f]{12}>", from_objects.inputs.job.path)
    assert simulate(from_objects, steps=5).figures["all"] == simulate(from_files, steps=5).figures["all"]
    run = simulate(from_files, profile=profile, trace=read_lengths("job/lengths.jsonl", cap_tokens=64), steps=5)
    assert run.figures["all"] == simulate("job/plan.yaml", steps=5).figures["all"]
    assert check(from_objects, job, cluster, profile).findings == ()
    assert not diff(from_files, from_objects).as_dict()["decisions"]
    assert job == load_job("job/job.yaml") and dump(job) == dump(load_job("job/job.yaml")), "a folder is no content"
    smaller = job.model_copy(update={"rollout": job.rollout.model_copy(update={"prompts_per_step": 2})})
    assert solve(smaller, mode="sync", force=True).job.issue.prompts_per_step == 2
    with pytest.raises(InputError, match=r"<job-[0-9a-f]+>:3: name: 'no/name'"):
        solve(job.model_copy(update={"name": "no/name"}))


def test_numbers_of_numpy_and_paths_are_values(here):
    assert changed(prompts_per_step=np.int64(2), temperature=np.float64(0.5)).job.issue.prompts_per_step == 2
    seqs = {"plan.job.rounds.short.rollout.max_num_seqs": np.int64(2), "job.data.path": Path("data.jsonl")}
    assert simulate("job/plan.yaml", steps=5, set=seqs).figures["set"][0].endswith("=2")


def test_a_copy_with_a_key_that_is_none_is_refused(here):
    with pytest.raises(ValueError, match="'prompts' is no key of a"):
        changed(prompts=3)


def test_solving_twice_or_in_threads_gives_equal_plans(here):
    modes = ("sync", "exact", "sync", "exact")
    alone = [lasting(solve("job", mode=mode)) for mode in modes]
    assert alone[:2] == alone[2:] and alone[0] != alone[1]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda mode: lasting(solve("job", mode=mode)), modes))
    assert together == alone


def test_progress_is_told_to_who_asks(here):
    told = []
    solve("job", mode="sync", progress=lambda text, share: told.append((text, share)))
    assert [share for _, share in told] == sorted(share for _, share in told) and told[-1] == ("done", 1.0)


BAD = {
    "no such job": (lambda: solve("nowhere"), "solve nowhere", ()),
    "unknown key": (lambda: solve("job"), "solve job", [("job/job.yaml", "kind: math", "kind: math, colour: 1")]),
    "three documents": (
        lambda: solve("job"),
        "solve job",
        [("job/job.yaml", "math", "maths"), ("job/cluster.yaml", "cores: 2", "cores: x"), ("job/profile.yaml",)],
    ),
    "another kind": (lambda: solve("job/cluster.yaml"), "solve job/cluster.yaml", ()),
    "two sorts of lengths": (
        lambda: solve("job", trace="job/lengths.jsonl", lengths="math-16k"),
        "solve job --trace job/lengths.jsonl --lengths math-16k",
        (),
    ),
    "a file of the user's": (
        lambda: solve("job", out="job/data.jsonl"), "solve job -o job/data.jsonl", ()
    ),
    "infeasible": (
        lambda: solve("job"), "solve job", [("job/job.yaml", "name: toy", "name: toy\nslo: {step_p95_s: 0.001}")]
    ),
    "no such key to set": (
        lambda: simulate("job/plan.yaml", set=["job.hue=1"]), "simulate job/plan.yaml --set job.hue=1", ()
    ),
    "an input is gone": (lambda: simulate("job/plan.yaml"), "simulate job/plan.yaml", [("job/cluster.yaml",)]),
    "small epoch": (lambda: simulate("job/plan.yaml", prompts=1), "simulate job/plan.yaml --prompts 1", ()),
    "no plan": (lambda: diff("job/plan.yaml", "job/job.yaml"), "diff job/plan.yaml job/job.yaml", ()),
    "no plans": (lambda: diff(None, None), "diff none none", ()),
    "no policy": (
        lambda: check("job/plan.yaml", policy="job/job.yaml"), "check job/plan.yaml --policy job/job.yaml", ()
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises_what_the_command_line_prints(case, here, capfd):
    call, line, edits = BAD[case]
    harmed(here, edits)
    with pytest.raises(rlplan.RlplanError) as raised:
        call()
    assert capfd.readouterr() == ("", "")
    told = raised.value.as_dict()
    assert told["error"] == type(raised.value).__name__ and told["exit_code"] == raised.value.exit_code
    places = [
        f"{fault['file']}{'' if fault['line'] is None else ':' + str(fault['line'])}: " if fault["file"] else ""
        for fault in told["faults"]
    ]
    lines = [place + fault["message"] for place, fault in zip(places, told["faults"], strict=True)]
    result = command(*line.split(), folder=here)
    prefix = "no feasible plan: " if told["exit_code"] == 3 else "error: "
    assert (result.returncode, result.stderr.splitlines()) == (told["exit_code"], [prefix + text for text in lines])
    if case == "unknown key":
        error = raised.value
        assert isinstance(error, ValueError) and (error.file, error.line) == ("job/job.yaml", 5)
        assert "colour" in error.message and json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: solve("job", mode="fast"), "mode: 'fast' is none of sync, race, defer, exact, predict"),
        (lambda: solve("job", objective="yen"), "objective: 'yen' is none of seconds, usd"),
        (lambda: solve("job", bias_budget=1), "bias_budget: 1 is no number of at least 0 and below 1"),
        (lambda: solve("job", seed=-1), "seed: -1 is no whole number"),
        (lambda: solve(7), "a int is no document"),
        (lambda: simulate("job/plan.yaml", steps=0), "steps: 0 is no whole number of at least 1"),
        (lambda: simulate("job/plan.yaml", steps=2.5), "steps: 2.5 is no whole number"),
        (lambda: check(), "name at least one file"),
        (lambda: simulate("job/plan.yaml", drift=float("nan")), "drift: nan is no number"),
        (lambda: check("job/plan.yaml", max_age_days=0), "max_age_days: 0 is no finite number above 0"),
        (lambda: check("job/plan.yaml", max_age_days="3"), "max_age_days: '3' is no finite number above 0"),
        (lambda: solve("job", lengths=Path("math-16k")), "lengths: PosixPath('math-16k') is no text"),
        (lambda: simulate("job/plan.yaml", set={"job.name": object}), "set: <class 'object'> is no number"),
        (lambda: changed(temperature=math.nan), "nan is no value of a document"),
        (lambda: changed(samples_per_prompt={2}), "{2} is no value of a document"),
    ],
)
def test_an_option_out_of_its_range_is_bad_input(call, words, here):
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value).startswith(words)


def test_a_policy_that_is_broken_is_a_finding(here):
    (here / "job" / "rlplan.policy.yaml").write_text(POLICY.replace("main: 1", "main: x"))
    checked = check("job/plan.yaml")
    assert checked.exit_code == 2 and checked.findings[0].file.endswith("rlplan.policy.yaml")


LIGHT = """
import json, sys
before = set(sys.modules)
import rlplan
packages = lambda names: {name.split(".")[0] for name in names}
print(json.dumps(sorted(packages(set(sys.modules) - before) - sys.stdlib_module_names)))
from rlplan import check, diff, simulate, solve, Plan, InputError
print(json.dumps(sorted(packages(sys.modules) & {"torch", "vllm", "ray", "numba", "click", "rich"})))
"""


def test_importing_the_package_loads_nothing_else(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIGHT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [["rlplan"], []]


def test_the_names_that_type_checkers_see_are_those_that_load():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(node.module, alias.name) for node in block.body for alias in node.names}
    assert seen == {(home, name) for home, names in rlplan._HOMES.items() for name in names}
    assert {name for _, name in seen} == set(rlplan.__all__) <= set(dir(rlplan))
    assert all(getattr(rlplan, name).__name__ == name for name in rlplan.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plan'"):
        _ = rlplan.plan
