"""Seeded faults: each is found by its rule, at its place, and told in words that help; and what is no fault."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from rlplan import __version__
from rlplan.cli.shared.findings import memory_rows
from rlplan.plans.check.finding import Finding
from rlplan.plans.check.rules import RULES
from rlplan.plans.schema.site_rules import SITE_RULES_NAME
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_doc import parse

from ...cli.solved_folder import code_rows
from ...golden import same_as_golden
from .conftest import run
from .edits import GONE, at, check, edit, resign, rules

KIND, LONG = "job.rounds.short", "job.rounds.long"
PLAN, JOB, CLUSTER, PROFILE = "plan.yaml", "job.yaml", "cluster.yaml", "profile.yaml"
FAULTS = sorted(Path(__file__).with_name("faults").glob("*.txt"))


def policy(folder: Path, text: str) -> None:
    (folder / SITE_RULES_NAME).write_text(f"rlplan_policy: 1\n{text}\n")


def seed(folder: Path, line: str) -> None:
    """Edit a file: `FILE KEY=VALUE`, `FILE KEY*=FACTOR`, `FILE LIST.+=VALUE` or `FILE -KEY`; a value may be `@KEY`."""
    file, change = line.split(" ", 1)
    if change.startswith("-"):
        edit(folder / file, {change[1:]: GONE})
        return
    key, text = change.split("=", 1)
    if text.startswith("@"):
        parent, last = at(parse((folder / file).read_text(), file).value, text[1:])
        value = parent[last]
    else:
        value = yaml.safe_load(text)
    if key.endswith("*"):
        edit(folder / file, {key[:-1]: lambda old: old * value})
    elif key.endswith(".+"):
        edit(folder / file, {key[:-2]: lambda items: [*items, value]})
    else:
        edit(folder / file, {key: value})


def told(folder: Path, lines: list[str]) -> list[str]:
    """What `check` says of a plan's folder after these edits, whose digests are made to fit unless they are `unsigned`
    or another file is checked (`check FILE`). `code-rows`: the data's answers become tests of code; `write FILE TEXT`
    makes a file of one line."""
    checked, signed = PLAN, True
    for line in lines:
        verb, _, rest = line.partition(" ")
        if verb == "policy":
            (folder / SITE_RULES_NAME).write_text(f"# ours\nrlplan_policy: 1\n{rest}\n")
        elif verb == "write":
            name, text = rest.split(" ", 1)
            (folder / name).write_text(f"{text}\n")
        elif verb == "check":
            checked, signed = rest, False
        elif verb == "unsigned":
            signed = False
        elif verb == "code-rows":
            code_rows(folder)
        else:
            seed(folder, line)
    if signed:
        resign(folder)
    report = check(folder / checked)
    assert report.findings, lines
    assert report.bad_input == any(RULES[rule].family == "schema" for rule in rules(report))
    count = (folder / checked).read_text().count("\n")
    assert all(f.line is not None and 1 <= f.line <= count for f in report.findings), lines
    texts = (f"{finding.rule} {finding.text}" for finding in report.findings)
    return [text.replace(f"{folder}/", "").replace(__version__, "VERSION") for text in texts]


@pytest.mark.parametrize("file", FAULTS, ids=lambda file: file.stem)
def test_a_seeded_fault_is_found_and_told(file, solved_once, tmp_path):
    """The files hold seeds (`> ` plan, then edits), each with its findings, which are written anew as tests/golden.py
    says."""
    lines = []
    for number, block in enumerate(file.read_text().split("\n\n")):
        seeded = [line for line in block.splitlines() if line.startswith("> ")]
        which, *edits = (line.removeprefix("> ") for line in seeded)
        folder = Path(shutil.copytree(solved_once(which), tmp_path / str(number)))
        lines += [*([""] if lines else []), *seeded, *told(folder, edits)]
    same_as_golden(lines, file)


def test_every_rule_of_the_catalogue_has_a_seeded_fault():
    found = {line.split(" ")[0] for file in FAULTS for line in file.read_text().splitlines() if line[:1] not in "> "}
    assert found | {"unreadable", "not-yaml", "not-executable", "policy-job-files"} == set(RULES)


FEWER = {
    f"{kind}.{part}": 1 for kind in (KIND, LONG) for part in ("rollout.engines", "train.dp", "train.tp", "train.pp")
}


@pytest.mark.parametrize(
    ("which", "edits", "signed", "allows", "gone", "new"),
    [
        (
            "laptop", {f"{KIND}.rollout.max_num_seqs": 3, "volatile.rlplan": "7.0.0"}, False,
            "allow_edited: true\nallow_other_versions: true", {"decisions-edited", "other-version"}, set(),
        ),
        (
            "groups", {"groups.g1.jobs.big.slowdown.keeps": False, "predicted.plan.slo_attained": 0.5}, True,
            "min_slo_attained: 0.4", {"bound-broken"}, set(),
        ),
        # What an edit makes of the figures is told where the edit is not.
        ("gpus", FEWER, False, "allow_edited: true", {"decisions-edited"}, {"nodes-do-not-add-up"}),
    ],
)  # fmt: skip
def test_a_policy_may_allow_what_is_a_finding_else(which, edits, signed, allows, gone, new, solved):
    folder = solved(which)
    edit(folder / PLAN, edits)
    if signed:
        resign(folder)
    before = rules(check(folder / PLAN))
    assert gone <= before and not new & before
    policy(folder, allows)
    assert rules(check(folder / PLAN)) == (before - gone) | new


def test_a_change_that_the_solver_does_not_read_is_a_note(solved):
    folder = solved("laptop")
    (folder / "data.jsonl").unlink()
    edit(folder / JOB, {"algorithm.learning_rate": 0.002})
    edit(folder / CLUSTER, {"name": "renamed"})
    edit(folder / PROFILE, {"note": "read twice"})
    report = check(folder / PLAN)
    assert rules(report) == set()
    assert [note.split("'")[1] for note in report.notes] == [CLUSTER, JOB, PROFILE]
    assert all("not in anything that the solver reads" in note for note in report.notes)
    policy(folder, "require_job_files: true")
    assert rules(check(folder / PLAN)) == {"policy-job-files"}, "a plan is reviewed without its data else"


def test_an_age_on_the_command_line_goes_before_the_policys(solved):
    folder = solved("laptop")
    assert rules(check(folder / PLAN, max_age_days=9)) == {"profile-old"}
    policy(folder, "max_profile_age_days: 3")
    assert rules(check(folder / PLAN, max_age_days=11)) == set()
    assert rules(check(solved("gpus") / PLAN, max_age_days=1)) == {"profile-undated"}


def test_files_that_are_no_documents_are_found_by_name(solved):
    folder = solved("laptop")
    (folder / "empty.yaml").write_text("")
    (folder / "torn.yaml").write_text((folder / PLAN).read_text().partition("{pool")[0] + "{pool")
    (folder / "twice.yaml").write_text("rlplan: 1\nrlplan: 1\n")
    os.mkfifo(folder / "pipe.yaml")
    expected = {"nowhere.yaml": "unreadable", ".": "unreadable", "empty.yaml": "unreadable", "torn.yaml": "not-yaml",
                "twice.yaml": "not-yaml", "pipe.yaml": "unreadable"}  # fmt: skip
    assert {name: rules(check(folder / name)) for name in expected} == {n: {r} for n, r in expected.items()}
    with (folder / "lengths.jsonl").open("a") as trace:
        trace.write("garbage\n")
    resign(folder)
    (found,) = check(folder / PLAN).findings
    assert found.rule == "input-unreadable" and "lengths.jsonl" in found.message and "not valid JSON" in found.message
    text = (folder / PLAN).read_text().replace("max_num_seqs: ", "max_num_seqs: 1" + "0" * 401)
    (folder / PLAN).write_text(text.replace("job:", "jobb:"))
    assert not any("not inf" in found.text for found in check(folder / PLAN).findings)


def test_what_the_executor_cannot_run_is_found_if_asked_for(solved):
    folder = solved("laptop")
    assert check(folder / PLAN).not_executable == () and rules(check(folder / PLAN, for_executor=True)) == set()
    edit(folder / PLAN, {f"{kind}.train.pp": 2 for kind in (KIND, LONG)} | {"job.reward.synchronous": True})
    resign(folder)
    told, asked = check(folder / PLAN), check(folder / PLAN, for_executor=True)
    assert "not-executable" not in rules(told) and rules(asked) == {*rules(told), "not-executable"}
    found = [finding for finding in asked.findings if finding.rule == "not-executable"]
    assert sorted(found, key=lambda f: f.line) == sorted(told.not_executable, key=lambda f: f.line)
    lines = (folder / PLAN).read_text().splitlines()
    for finding, key in zip(found, ("pp: 2", "pp: 2", "synchronous: true"), strict=True):
        assert key in lines[finding.line - 1] and finding.remedy
    assert {f.key for f in found} == {f"{KIND}.train.pp", f"{LONG}.train.pp", "job.reward.synchronous"}


def test_a_plan_of_groups_says_what_is_not_executed_if_asked(solved):
    folder = solved("groups")
    assert rules(check(folder / PLAN)) == set() and check(folder / PLAN).not_executable is None
    asked = check(folder / PLAN, for_executor=True)
    assert asked.not_executable == asked.findings != (), "what is a finding is also why it cannot be run"
    assert {finding.rule for finding in asked.findings} == {"not-executable"}
    assert "has no plan of its own to execute" in {finding.message for finding in asked.findings}
    assert all(finding.remedy.endswith("solve again") for finding in asked.findings)
    assert check(folder / CLUSTER, for_executor=True).findings == ()


def learn(folder: Path, **accelerators: object) -> None:
    """Give the cluster another pool like `main`, but for what is said of its accelerators."""
    seed(folder, f"{CLUSTER} pools.learn=@pools.main")
    edit(folder / CLUSTER, {f"pools.learn.accelerators.{key}": value for key, value in accelerators.items()})


@pytest.fixture
def refused(solved):
    """`refused(file)`: what `solve` refuses in the folder on GPUs, at a line of the file, and the same text that check
    finds there."""
    folder = solved("gpus")

    def refused(file: str, edits: dict[str, object], without: str | None = None) -> Finding:
        edit(folder / file, edits)
        with pytest.raises(InputError) as caught:
            run("solve", folder, "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
        if without:
            (folder / without).unlink()
        (found,) = check(folder / file).findings
        assert found.text == caught.value.message
        if file == JOB:
            assert (caught.value.path, caught.value.line) == (str(folder / JOB), found.line)
        return found

    refused.folder = folder
    return refused


@pytest.mark.parametrize(("kind", "deadline_s", "without"), [("math", 0.001, None), ("code", 0.1, PROFILE)])
def test_a_deadline_that_gives_rewards_no_time_is_refused(kind, deadline_s, without, refused):
    """Without a profile, by the seconds that ship for the kind."""
    if kind == "code":
        code_rows(refused.folder)
    found = refused(JOB, {"reward.kind": kind, "reward.deadline_s": deadline_s}, without)
    assert found.rule == "deadline-too-short" and f"is {deadline_s:g} s" in found.message
    assert found.key == "reward.deadline_s"


def test_a_cluster_and_workers_that_solve_refuses_are_found(refused):
    assert refused(CLUSTER, {"pools.main.nodes": 20_000}).rule == "pool-too-large"
    edit(refused.folder / CLUSTER, {"pools.main.nodes": 1})
    assert refused(JOB, {"reward.workers": 5000}).rule == "too-many-reward-workers"


@pytest.mark.parametrize(
    ("rule", "train", "other"),
    [
        ("unknown-pool", "learn", None),
        ("same-pool", "main", None),
        ("pools-of-two-kinds", "learn", {"kind": "cpu", "name": "EPYC"}),
        ("profile-of-other-machine", "learn", {"name": "H20", "memory_bytes": 96 * 10**9}),
    ],
)
def test_a_pool_that_trainers_cannot_have_is_refused(rule, train, other, refused):
    if other:
        learn(refused.folder, **other)
    found = refused(JOB, {"placement": {"train_pool": train}})
    assert found.rule == rule
    assert "train_pool" in (refused.folder / JOB).read_text().splitlines()[found.line - 1]


def test_a_plan_on_two_pools_has_no_finding_but_a_breached_limit(solved):
    folder = solved("gpus")
    learn(folder)
    edit(folder / JOB, {"placement": {"train_pool": "learn"}})
    run("solve", folder, "--mode", "sync", "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
    edit(folder / "new.yaml", {"volatile.solved_at": "2026-01-11T00:00:00Z"})
    assert rules(check(folder / JOB)) == rules(check(folder / "new.yaml")) == set()
    held = memory_rows(folder / "new.yaml")
    assert held is not None and {row["of"] for row in held} == {"engines", "trainers"}
    policy(folder, "max_nodes: {main: 8, learn: 0}")
    (found,) = check(folder / "new.yaml").findings
    assert found.rule == "policy-nodes" and "of pool 'learn'" in found.message
