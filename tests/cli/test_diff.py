"""`rlplan diff` as a reviewer meets it: plans that were really solved, operands from git, and bad input."""

import os
import shutil
import subprocess
import sys

import pytest

from .command_line import data, printed, refused, rlplan
from .solved_folder import edit, sha


def solve(folder, *options):
    """Solve the folder's job again, also if its profile was measured with other caps."""
    printed("solve", folder, "--force", *options)


@pytest.fixture(scope="module")
def pair(solved_once, tmp_path_factory):
    """A solved folder, and one whose job trains more prompts a step, solved again."""
    old = shutil.copytree(solved_once, tmp_path_factory.mktemp("old"), dirs_exist_ok=True)
    solve(old, "--mode", "race")
    new = shutil.copytree(old, tmp_path_factory.mktemp("new") / "job")
    edit(new / "job.yaml", "prompts_per_step: 4", "prompts_per_step: 6")
    solve(new, "--mode", "race")
    return old / "plan.yaml", new / "plan.yaml"


def test_markdown_says_what_differs_and_what_it_costs(pair):
    text = printed("diff", *pair, "--markdown")
    assert len(text.splitlines()) <= 40 < len(printed("diff", *pair, "--markdown", "--full").splitlines())
    assert text.startswith(f"<!-- rlplan diff: {pair[1]} -->")
    assert "| `job.rollout.prompts_per_step` | `4` | `6` |" in text, "the input"
    assert "1 input (job) differ" in text
    assert "| `rounds.short.issue.prompts` | `" in text, "a decision"
    assert "seconds per sample" in text and "| step, mean |" in text, "seconds"
    assert "USD per 1000 samples" in text, "dollars"
    assert "±" in text, "how sure it is"


def test_the_json_agrees_with_the_plans(pair):
    result = data("diff", *pair)
    shown = [data("show", plan) for plan in pair]
    price = result["effects"]["usd_per_1k_samples"]
    assert price["old"] == pytest.approx(shown[0]["usd_per_1k_samples"], rel=1e-5)
    assert price["new"] == pytest.approx(shown[1]["usd_per_1k_samples"], rel=1e-5)
    assert price["delta"] == pytest.approx(price["new"] - price["old"])
    assert [change["name"] for change in result["inputs"]] == ["job"]
    assert result["inputs"][0]["changes"] == [
        {"key": "job.rollout.prompts_per_step", "old": 4, "new": 6, "relative": 0.5}
    ]
    assert result["same"] is False and result["decisions"]
    assert (result["old"], result["new"]) == tuple(map(str, pair))


def test_exit_codes_are_gits_only_if_asked_for(pair, tmp_path):
    old, new = pair
    printed("diff", old, new)
    printed("diff", old, new, "--exit-code", code=1)
    printed("diff", "none", new, "--exit-code", code=1)
    assert "same:" in printed("diff", old, old, "--exit-code")
    again = shutil.copytree(old.parent, tmp_path / "again")
    solve(again, "--mode", "race")
    printed("diff", old, again / "plan.yaml", "--exit-code")


def test_a_length_trace_and_a_profile_say_what_changed_in_them(solved_once, tmp_path):
    old, new = solved_once / "plan.yaml", shutil.copytree(solved_once, tmp_path / "new")
    trace = new / "lengths.jsonl"
    before = sha(trace)
    trace.write_text(trace.read_text().replace('"tokens": 3,', '"tokens": 5,'))
    edit(new / "profile.yaml", before, sha(trace))
    edit(new / "profile.yaml", "step_s: 0.002\n", "step_s: 0.003\n")
    solve(new, "--mode", "sync")
    result = data("diff", old, new / "plan.yaml")
    changes = {change["name"]: [key["key"] for key in change["changes"]] for change in result["inputs"]}
    assert changes["lengths"] == ["lengths.mean_tokens"]
    assert changes["profile"][0] == "profile.rollout[tp=1].step_s"
    text = printed("diff", old, new / "plan.yaml")
    assert "profile.rollout[tp=1].step_s" in text and "(+50.0%)" in text
    assert "their profiles and lengths differ" in " ".join(text.split()), "nothing says that the errors are common"


def test_a_plan_whose_input_changed_since_is_called_stale(solved):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    text = printed("diff", solved / "plan.yaml", solved / "plan.yaml", "--markdown")
    assert "job.yaml has changed since the new plan was solved; solve again" in text
    assert "**stale: job.yaml changed" in text and "same:" not in text
    printed("diff", solved / "plan.yaml", solved / "plan.yaml", "--exit-code", code=1)


# -- plans in git ------------------------------------------------------------------------------------------------------


def git(folder, *arguments):
    who = {f"GIT_{role}_{key}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    nobody = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    environment = {**os.environ, **who, **nobody}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def repository(pair, tmp_path, monkeypatch):
    """A repository with the old plan and its inputs on main, and the new ones in the working tree; one is in it."""
    folder = tmp_path / "repository"
    shutil.copytree(pair[0].parent, folder / "plans")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a plan")
    for name in ("job.yaml", "plan.yaml"):
        shutil.copy(pair[1].parent / name, folder / "plans" / name)
    monkeypatch.chdir(folder)
    return folder


def here(*arguments, code=0):
    """As `printed`, in the current folder."""
    return printed(*arguments, code=code, folder=".")


def test_an_operand_may_be_a_revision_with_its_inputs(repository, tmp_path, monkeypatch):
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setenv("TMPDIR", str(room))
    monkeypatch.setattr("tempfile.tempdir", None)
    text = here("diff", "main:plans/plan.yaml", "plans/plan.yaml", "--markdown")
    assert text.startswith("<!-- rlplan diff: plans/plan.yaml -->\n### `plans/plan.yaml`\n")
    assert "| `job.rollout.prompts_per_step` | `4` | `6` |" in text
    here("diff", "main:plans/job.yaml", "plans/plan.yaml", code=2)
    assert list(room.iterdir()) == [], "nothing is left of a revision that was read"
    assert git(repository, "status", "--short").splitlines() == [" M plans/job.yaml", " M plans/plan.yaml"]
    monkeypatch.chdir(repository / "plans")
    assert "job.rollout.prompts_per_step" in here("diff", "main:./plan.yaml", "plan.yaml")
    git(repository, "commit", "-qam", "larger steps")
    both = here("diff", "HEAD~1:plans/plan.yaml", "HEAD:plans/plan.yaml", "--exit-code", code=1)
    assert "job.rollout.prompts_per_step" in both
    # A file goes before a revision of that name.
    shutil.copy("plan.yaml", "main:plan.yaml")
    here("diff", "main:plan.yaml", "plan.yaml", "--exit-code")


def test_an_input_outside_the_repository_is_not_at_hand(repository):
    edit(repository / "plans" / "plan.yaml", "path: job.yaml", "path: ../../../job.yaml")
    git(repository, "commit", "-qam", "elsewhere")
    result = data("diff", "HEAD~1:plans/plan.yaml", "HEAD:plans/plan.yaml", folder=".")
    assert result["inputs"][0]["changes"] is None and result["stale"] == {"job": "not at hand"}


@pytest.mark.parametrize(
    ("operand", "words"),
    [
        ("nowhere:plans/plan.yaml", ("no revision 'nowhere'", "fetch")),
        ("main:plans/other.yaml", ("has no file 'plans/other.yaml'", "write none")),
        ("main:../plan.yaml", ("has no file",)),
        ("--help:x", ("'--help' is no revision",)),
        ("main:plans/job.yaml", ("a plan ('rlplan') is needed",)),
    ],
)
def test_a_revision_that_is_not_there_is_one_line(operand, words, repository):
    refused(rlplan("diff", "--", operand, "plans/plan.yaml", folder="."), *words)


def test_without_git_or_a_repository_a_revision_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    refused(rlplan("diff", "main:a.yaml", "none", folder="."), "main:a.yaml: no such file, and git says: ")

    def hangs(*_, **options):
        raise subprocess.TimeoutExpired("git", options["timeout"])

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", hangs)
        refused(rlplan("diff", "main:a.yaml", "none", folder="."), "git rev-parse took longer than 120 s")
    monkeypatch.setenv("PATH", "/nowhere")
    refused(rlplan("diff", "main:a.yaml", "none", folder="."), "git is not installed")


def test_the_installed_command_prints_the_same(pair):
    command = [sys.executable, "-m", "rlplan.cli.main", "diff", *map(str, pair), "--exit-code"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert (done.returncode, done.stdout) == (1, printed("diff", *pair, "--exit-code", code=1))
