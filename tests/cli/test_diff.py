"""`rlplan diff` as a reviewer meets it: plans that were really solved, operands from git, and bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from rlplan.plans.yaml.yaml_io import dump

from ..group_documents import group, groups_plan
from .command_line import refused, rlplan
from .solved_folder import edit, sha, write_solved


def solve(folder, *options):
    """Solve the folder's job again, also if its profile was measured with other caps."""
    result = rlplan("solve", folder, "--force", *options)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A solved folder, and one whose job trains more prompts a step, solved again."""
    old = write_solved(tmp_path_factory.mktemp("old"))
    solve(old, "--mode", "race")
    new = tmp_path_factory.mktemp("new") / "job"
    shutil.copytree(old, new)
    edit(new / "job.yaml", "prompts_per_step: 4", "prompts_per_step: 6")
    solve(new, "--mode", "race")
    return old / "plan.yaml", new / "plan.yaml"


def test_plans_that_differ_in_one_input_say_in_forty_lines_which_what_follows_and_what_it_costs(pair):
    old, new = pair
    result = rlplan("diff", old, new, "--markdown")
    assert result.returncode == 0, result.stderr
    text = result.stdout
    assert len(text.splitlines()) <= 40
    assert text.startswith(f"<!-- rlplan diff: {new} -->")
    assert "| `job.rollout.prompts_per_step` | `4` | `6` |" in text, "the input"
    assert "1 input (job) differ" in text
    assert "| `rounds.short.issue.prompts` | `" in text, "a decision"
    assert "seconds per sample" in text and "| step, mean |" in text, "seconds"
    assert "USD per 1000 samples" in text, "dollars"
    assert "±" in text, "how sure it is"


def test_all_figures_are_in_the_json_and_agree_with_the_plans(pair):
    old, new = pair
    result = json.loads(rlplan("diff", old, new, "--json").stdout)
    shown = [json.loads(rlplan("show", plan, "--json").stdout) for plan in pair]
    price = result["effects"]["usd_per_1k_samples"]
    assert price["old"] == pytest.approx(shown[0]["usd_per_1k_samples"], rel=1e-5)
    assert price["new"] == pytest.approx(shown[1]["usd_per_1k_samples"], rel=1e-5)
    assert price["delta"] == pytest.approx(price["new"] - price["old"])
    assert [change["name"] for change in result["inputs"]] == ["job"]
    assert result["inputs"][0]["changes"] == [
        {"key": "job.rollout.prompts_per_step", "old": 4, "new": 6, "relative": 0.5}
    ]
    assert result["same"] is False and result["decisions"]


def test_exit_codes_are_gits_only_if_asked_for(pair):
    old, new = pair
    assert rlplan("diff", old, new).returncode == 0
    assert rlplan("diff", old, new, "--exit-code").returncode == 1
    same = rlplan("diff", old, old, "--exit-code")
    assert same.returncode == 0 and "same:" in same.stdout
    assert rlplan("diff", "none", new, "--exit-code").returncode == 1


def test_solving_the_same_inputs_again_is_the_same_plan(pair, tmp_path):
    shutil.copytree(pair[0].parent, tmp_path / "again")
    solve(tmp_path / "again", "--mode", "race")
    result = rlplan("diff", pair[0], tmp_path / "again" / "plan.yaml", "--exit-code")
    assert result.returncode == 0, result.stdout


def test_the_terminal_version_fits_eighty_columns_without_colour(pair, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for options in ((), ("--full",)):
        result = rlplan("diff", *pair, *options)
        assert result.returncode == 0, result.stderr
        assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80
        assert "\x1b" not in result.stdout and "job.rollout.prompts_per_step" in result.stdout


def test_a_length_trace_and_a_profile_say_what_changed_in_them(solved):
    shutil.copy(solved / "plan.yaml", solved / "old.yaml")
    new = solved.parent / (solved.name + "-new")
    shutil.copytree(solved, new)
    trace = new / "lengths.jsonl"
    before = sha(trace)
    trace.write_text(trace.read_text().replace('"tokens": 3,', '"tokens": 5,'))
    edit(new / "profile.yaml", before, sha(trace))
    edit(new / "profile.yaml", "step_s: 0.002\n", "step_s: 0.003\n")
    solve(new, "--mode", "sync")
    result = json.loads(rlplan("diff", solved / "old.yaml", new / "plan.yaml", "--json").stdout)
    changes = {change["name"]: [key["key"] for key in change["changes"]] for change in result["inputs"]}
    assert changes["lengths"] == ["lengths.mean_tokens"]
    assert changes["profile"][0] == "profile.rollout[tp=1].step_s"
    text = rlplan("diff", solved / "old.yaml", new / "plan.yaml").stdout
    assert "profile.rollout[tp=1].step_s" in text and "(+50.0%)" in text
    assert "independent" in text, "another profile, so nothing says that the errors are common"


def test_a_plan_whose_input_changed_since_is_called_stale(solved):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    result = rlplan("diff", solved / "plan.yaml", solved / "plan.yaml", "--markdown")
    assert "job.yaml has changed since the new plan was solved; solve again" in result.stdout
    assert "**stale: job.yaml changed" in result.stdout and "same:" not in result.stdout
    assert rlplan("diff", solved / "plan.yaml", solved / "plan.yaml", "--exit-code").returncode == 1


def git(folder, *arguments):
    who = {f"GIT_{role}_{key}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    nobody = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *arguments], cwd=folder, env={**os.environ, **who, **nobody},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def rlplan_in(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "rlplan.cli.main", *map(str, arguments)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip


@pytest.fixture
def repository(pair, tmp_path):
    """A repository with the old plan and its inputs on main, and the new ones in the working tree."""
    folder = tmp_path / "repository"
    shutil.copytree(pair[0].parent, folder / "plans")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a plan")
    for name in ("job.yaml", "plan.yaml"):
        shutil.copy(pair[1].parent / name, folder / "plans" / name)
    return folder


def test_an_operand_may_be_a_revision_and_its_inputs_are_those_of_that_revision(repository):
    result = rlplan_in(repository, "diff", "main:plans/plan.yaml", "plans/plan.yaml", "--markdown")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("<!-- rlplan diff: plans/plan.yaml -->\n### `plans/plan.yaml`\n")
    assert "| `job.rollout.prompts_per_step` | `4` | `6` |" in result.stdout
    below = rlplan_in(repository / "plans", "diff", "main:./plan.yaml", "plan.yaml", "--json")
    assert json.loads(below.stdout)["inputs"][0]["changes"]
    git(repository, "commit", "-qam", "larger steps")
    both = rlplan_in(repository, "diff", "HEAD~1:plans/plan.yaml", "HEAD:plans/plan.yaml", "--exit-code")
    assert both.returncode == 1 and "job.rollout.prompts_per_step" in both.stdout


def test_nothing_is_left_of_a_revision_that_was_read(repository, tmp_path):
    room = tmp_path / "room"
    room.mkdir()
    rlplan_in(repository, "diff", "main:plans/plan.yaml", "plans/plan.yaml", TMPDIR=str(room))
    rlplan_in(repository, "diff", "main:plans/job.yaml", "plans/plan.yaml", TMPDIR=str(room))
    assert [path for path in room.rglob("*") if path.name.startswith("rlplan-diff")] == []
    assert git(repository, "status", "--short").splitlines() == [" M plans/job.yaml", " M plans/plan.yaml"]


def test_an_input_that_lies_outside_the_repository_is_not_at_hand(repository):
    plan = repository / "plans" / "plan.yaml"
    plan.write_text(plan.read_text().replace("path: job.yaml", "path: ../../../job.yaml"))
    git(repository, "commit", "-qam", "elsewhere")
    result = rlplan_in(repository, "diff", "HEAD~1:plans/plan.yaml", "HEAD:plans/plan.yaml", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["inputs"][0]["changes"] is None
    assert json.loads(result.stdout)["stale"] == {"job": "not at hand"}


@pytest.mark.parametrize(
    ("operand", "words"),
    [
        ("nowhere:plans/plan.yaml", ("no revision 'nowhere'", "fetch")),
        ("main:plans/other.yaml", ("has no file 'plans/other.yaml'", "write none")),
        ("main:../plan.yaml", ("has no file",)),
        ("--help:x", ()),
        ("main:plans/job.yaml", ("a plan ('rlplan') is needed",)),
    ],
)
def test_a_revision_that_is_not_there_is_one_line(operand, words, repository):
    refused(rlplan_in(repository, "diff", "--", operand, "plans/plan.yaml"), *words)


def test_without_git_or_a_repository_a_revision_is_one_line(repository, tmp_path):
    refused(rlplan_in(tmp_path, "diff", "main:a.yaml", "none", GIT_CEILING_DIRECTORIES=str(tmp_path.parent)), "git")
    bare = rlplan_in(repository, "diff", "main:plans/plan.yaml", "none", PATH="/nowhere")
    refused(bare, "git is not installed")


def test_a_file_goes_before_a_revision_of_that_name(repository):
    shutil.copy(repository / "plans" / "plan.yaml", repository / "plans" / "main:plan.yaml")
    result = rlplan_in(repository / "plans", "diff", "main:plan.yaml", "plan.yaml", "--exit-code")
    assert result.returncode == 0, result.stderr + result.stdout


def test_kinds_do_not_mix_and_what_is_no_plan_is_refused(pair, tmp_path):
    groups = tmp_path / "groups.yaml"
    dump(groups_plan({"g1": group(["a", "b"])}), groups)
    refused(rlplan("diff", pair[0], groups), "a plan of one job", "a plan of groups")
    refused(rlplan("diff", pair[0].with_name("job.yaml"), pair[0]), "job.yaml")
    refused(rlplan("diff", pair[0], tmp_path / "gone.yaml"), "no such file")
    refused(rlplan("diff", "none", "none"), "name a plan")
    refused(rlplan("diff", pair[0], pair[1], "--json", "--markdown"), "one of them")
    assert rlplan("diff", groups, groups, "--exit-code").returncode == 0


def test_a_new_plan_and_one_that_is_gone_are_told_with_their_figures(pair, tmp_path):
    for operands, word in ((("none", pair[0]), "new plan"), ((pair[0], "none"), "plan removed")):
        assert word in rlplan("diff", *operands).stdout
        text = rlplan("diff", *operands, "--markdown").stdout
        assert word in text and len(text.splitlines()) <= 40 and "seconds per sample" in text
        result = json.loads(rlplan("diff", *operands, "--json").stdout)
        assert result["same"] is False and result["kind"] == "job"
    groups = tmp_path / "groups.yaml"
    dump(groups_plan({"g1": group(["a", "b"])}), groups)
    assert "2 jobs in 1 group" in rlplan("diff", "none", groups).stdout
