"""The recipe of docs/ci, run as a CI job runs it: a repository with two branches, a plan with its inputs on `main`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rlplan as package
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.profiles.fitness import subject_digest

from .command_line import rlplan
from .fork_server import CLIENT
from .solved_folder import edit, write_solved

DOCS = Path(package.__file__).parent / "docs" / "ci"
NOBODY = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.c",
}  # fmt: skip


def solve(folder, *options):
    result = rlplan("solve", folder, "--force", "--mode", "race", *options)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """The folder as it is on main, and on the branch: the job changed, and was profiled and solved again."""
    main = write_solved(tmp_path_factory.mktemp("main"))
    solve(main)
    branch = tmp_path_factory.mktemp("branch") / "job"
    shutil.copytree(main, branch)
    edit(branch / "job.yaml", "prompts_per_step: 4", "prompts_per_step: 6")
    old, new = (
        subject_digest(load_job(f), job_paths(load_job(f), f)) for f in (main / "job.yaml", branch / "job.yaml")
    )
    edit(branch / "profile.yaml", old, new)
    solve(branch)
    return main, branch


class Repository:
    """A git repository with the folder as `plans/`, on a branch that left `main` and has done nothing yet."""

    def __init__(self, root, states, server):
        self.root, self.states = root, states
        self.plans = root / "plans"
        shutil.copytree(states[0], self.plans, ignore=shutil.ignore_patterns(".rlplan"))
        bin_ = root.parent / "bin"
        bin_.mkdir()
        command = bin_ / "rlplan"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S -c \'{CLIENT}\' "{server}" "$@"\n')
        command.chmod(0o755)
        self.environment = {**os.environ, **NOBODY, "PATH": f"{bin_}:{os.environ['PATH']}"}
        for line in ("init -q -b main", "add -A", "commit -qm base", "switch -qc branch"):
            self.git(*line.split())

    def git(self, *arguments):
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def take_over(self):
        """The branch's documents."""
        for name in ("job.yaml", "profile.yaml", "plan.yaml"):
            shutil.copy(self.states[1] / name, self.plans / name)

    def commit(self):
        self.git("add", "-A", ":!review.md")
        self.git("commit", "-qm", "change")

    def review(self, *options, cwd=None, **environment):
        """The recipe's result, and the comment that it wrote."""
        out = self.root.parent / "review.md"
        out.unlink(missing_ok=True)
        done = subprocess.run(
            ["sh", str(DOCS / "review.sh"), "--base", "main", "--out", str(out), *options],
            cwd=cwd or self.root, env={**self.environment, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done, out.read_text() if out.exists() else ""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A socket at which `rlplan` answers without starting anew."""
    path = tmp_path_factory.mktemp("server") / "s"
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("fork_server.py"), path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    yield path
    process.kill()
    process.wait()


@pytest.fixture
def repository(states, server, tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    return Repository(root, states, server)


def test_a_plan_whose_input_changed_and_that_was_solved_again_passes_and_says_what_it_costs(repository, tmp_path):
    repository.take_over()
    repository.commit()
    outputs = tmp_path / "outputs"
    done, comment = repository.review(GITHUB_OUTPUT=str(outputs))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plan plans/plan.yaml: ok\n" in done.stdout and "1 plan(s) against main, 0 do not pass" in done.stdout
    lines = comment.splitlines()
    assert lines[0] == "<!-- rlplan review -->" and len(lines) <= 45
    assert "### `plans/plan.yaml`" in lines
    assert "| `job.rollout.prompts_per_step` | `4` | `6` |" in lines, "the input"
    assert any(line.startswith("| `rounds.short.issue.prompts` | `") for line in lines), "a decision"
    assert "seconds per sample" in comment and "USD per 1000 samples" in comment
    assert outputs.read_text() == "plans=1\n"


def test_a_plan_whose_input_changed_without_a_solve_is_found_and_fails(repository):
    edit(repository.plans / "job.yaml", "tp: [1]", "tp: [1, 2]")
    repository.commit()
    done, comment = repository.review()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "plan plans/plan.yaml: findings" in done.stdout and "job.yaml" in done.stdout
    assert "**Does not pass: findings**" in comment and "has changed since the new plan was solved" in comment
    annotated, _ = repository.review("--format", "github")
    errors = [line for line in annotated.stdout.splitlines() if line.startswith("::error ")]
    assert errors and all("file=plans/plan.yaml,line=" in line for line in errors)


def test_a_plan_that_is_not_canonical_fails(repository):
    plan = repository.plans / "plan.yaml"
    plan.write_text(plan.read_text().replace("gap: 0.0\n", "gap:   0.00\n"))
    repository.commit()
    done, comment = repository.review("--format", "github")
    assert done.returncode == 1
    assert "::error file=plans/plan.yaml,line=1,title=rlplan fmt::not canonical" in done.stdout
    assert "**Does not pass: not canonical**" in comment and "same: decisions" in comment


def test_new_and_renamed_plans_are_each_told_as_such(repository):
    solve(repository.plans, "--out", repository.plans / "new.yaml", "--bias-budget", "0.5")
    repository.git("mv", "plans/plan.yaml", "plans/other.yaml")
    repository.commit()
    done, comment = repository.review()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plan plans/new.yaml: ok" in done.stdout and "plan plans/other.yaml: ok" in done.stdout
    assert comment.count("new plan: toy by mode race") == 1 and "plain sync" in comment
    assert "### `plans/plan.yaml -> plans/other.yaml`" in comment and "same: decisions" in comment


def test_a_deleted_plan_is_told_with_what_it_was(repository):
    repository.git("rm", "-q", "plans/plan.yaml", "plans/cluster.yaml")
    repository.commit()
    done, comment = repository.review()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 plan(s) against main" in done.stdout
    assert "### `plans/plan.yaml`" in comment and "plan removed: toy by mode race" in comment


def test_a_policy_that_changed_is_held_against_the_plans_below_it(repository):
    (repository.root / "rlplan.policy.yaml").write_text("rlplan_policy: 1\nforbidden_modes: [race]\n")
    repository.commit()
    done, comment = repository.review()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "race" in comment and "same: decisions" in comment


def test_what_touches_no_plan_is_no_review_and_neither_is_what_happened_on_the_base(repository):
    (repository.root / "notes.txt").write_text("x\n")
    repository.commit()
    repository.git("switch", "-q", "main")
    edit(repository.plans / "job.yaml", "tp: [1]", "tp: [1, 2]")
    repository.commit()
    repository.git("switch", "-q", "branch")
    done, comment = repository.review(cwd=repository.plans)
    assert done.returncode == 0 and comment == "<!-- rlplan review -->\nNo plan differs from `main`.\n"


def test_a_plan_that_the_base_has_in_an_unreadable_form_is_shown_as_it_is_now(repository):
    plan = repository.plans / "plan.yaml"
    text = plan.read_text()
    plan.write_text("rlplan: 0\nold: format\n")
    repository.git("switch", "-q", "main")
    repository.commit()
    repository.git("switch", "-qC", "branch")
    plan.write_text(text)
    repository.commit()
    done, comment = repository.review()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "new plan: toy" in comment and "plan.yaml" in comment and "unknown key" in comment
    assert "Does not pass" not in comment


def test_a_plan_that_is_broken_fails_and_the_others_are_still_reviewed(repository):
    (repository.plans / "broken |.yaml").write_text("rlplan: 1\nx: [\n")
    repository.take_over()
    repository.commit()
    done, comment = repository.review()
    assert done.returncode == 1
    assert "2 plan(s) against main, 1 do not pass" in done.stdout
    assert "not valid YAML" in comment and "job.rollout.prompts_per_step" in comment


def test_a_plan_whose_mark_is_broken_is_reviewed_since_it_was_a_plan(repository):
    plan = repository.plans / "plan.yaml"
    plan.write_text(plan.read_text().replace("\nrlplan: 1", "\nrlpan: 1"))
    repository.commit()
    done, comment = repository.review("--format", "github")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 plan(s) against main, 1 do not pass" in done.stdout and "its first key" in comment
    assert "::error file=plans/plan.yaml" in done.stdout


def test_a_plan_that_became_another_document_does_not_pass(repository):
    shutil.copy(repository.plans / "cluster.yaml", repository.plans / "plan.yaml")
    repository.commit()
    done, _ = repository.review()
    assert done.returncode == 1 and "plan plans/plan.yaml:" in done.stdout and "no plan any more" in done.stdout


@pytest.mark.parametrize("mark", ['"rlplan": 1', "'rlplan' : 1"])
def test_a_plan_whose_first_key_is_quoted_is_a_plan(mark, repository):
    plan = repository.plans / "plan.yaml"
    (repository.plans / "quoted.yaml").write_text(plan.read_text().replace("\nrlplan: 1", f"\n{mark}"))
    repository.commit()
    done, _ = repository.review()
    assert done.returncode == 1 and "plan plans/quoted.yaml: not canonical\n" in done.stdout, done.stdout + done.stderr


def test_names_that_git_quotes_are_names_like_others(repository):
    names = ['we"ird.yaml', "tab\there.yaml", "back\\slash é.yaml", "a=b.yaml"]
    text = (repository.plans / "plan.yaml").read_text()
    for name in names:
        (repository.plans / name).write_text(text.replace("gap: 0.0\n", "gap:  0.0\n"))
    repository.commit()
    done, _ = repository.review()
    assert done.returncode == 1 and "4 plan(s) against main, 4 do not pass" in done.stdout, done.stdout + done.stderr
    assert all(f"plan plans/{name}: not canonical\n" in done.stdout for name in names)
    repository.git("switch", "-q", "main")
    repository.git("merge", "-q", "branch")
    repository.git("switch", "-qC", "later")
    edit(repository.plans / "job.yaml", "tp: [1]", "tp: [1, 2]")
    repository.commit()
    assert "5 plan(s) against main, 5 do not pass" in repository.review()[0].stdout, "also by an input of theirs"


def test_what_is_no_yaml_is_for_check_alone_to_say(repository):
    (repository.plans / "plan.yaml").write_text("rlplan: 1\nx: [\n")
    repository.commit()
    done, comment = repository.review("--format", "github")
    assert done.returncode == 1 and "canonical" not in done.stdout + comment
    assert "plan plans/plan.yaml: findings\n" in done.stdout and done.stdout.count("::error") == 1


def test_a_policy_that_cannot_be_read_is_told_once_and_fails_no_plan(repository):
    shutil.copy(repository.plans / "plan.yaml", repository.plans / "other.yaml")
    (repository.plans / "rlplan.policy.yaml").write_text("rlplan_policy: 1\nmax_bais: 0.1\n")
    repository.commit()
    done, comment = repository.review("--format", "github")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("::error ") == 1 and comment.count("max_bais") == 1
    assert "2 plan(s) against main, 0 do not pass, 1 policy file(s) cannot be read" in done.stdout
    assert "plan plans/plan.yaml: ok, but not held against plans/rlplan.policy.yaml" in done.stdout


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        (("--base", "nowhere"), {}, "no common history with 'nowhere'"),
        (("--what",), {}, "usage: review.sh"),
        (("--format", "xml"), {}, "usage: review.sh"),
        ((), {"PATH": "/usr/bin:/bin"}, "rlplan is not installed"),
    ],
)
def test_a_review_that_cannot_be_made_exits_with_two_in_one_line(options, environment, words, repository):
    done, comment = repository.review(*options, **environment)
    assert done.returncode == 2 and comment == ""
    assert words in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_comment_stays_below_what_github_takes(repository):
    text = (repository.states[1] / "plan.yaml").read_text()
    repository.take_over()
    script = (DOCS / "review.sh").read_text()
    small = repository.root.parent / "review.sh"
    small.write_text(re.sub(r"LIMIT=\d+", "LIMIT=6000", script))
    for number in range(3):
        (repository.plans / f"plan{number}.yaml").write_text(text)
    repository.commit()
    out = repository.root.parent / "small.md"
    done = subprocess.run(
        ["sh", small, "--base", "main", "--out", out], cwd=repository.root, env=repository.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "4 plan(s) against main" in done.stdout, done.stdout + done.stderr
    assert len(out.read_bytes()) < 6200 and "Left out" in out.read_text()


def test_the_workflow_parses_grants_little_and_its_shell_is_sound():
    text = (DOCS / "github-action.yml").read_text()
    workflow = yaml.safe_load(text)
    triggers = workflow[True]  # YAML 1.1 reads the key `on` as true
    assert list(triggers) == ["pull_request"], "never pull_request_target: it runs forks' code with a token that writes"
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    [job] = workflow["jobs"].values()
    checkout = next(step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"]["fetch-depth"] == 0 and checkout["with"]["persist-credentials"] is False
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert any("docs/ci/review.sh" in run for run in runs)
    marker = "<!-- rlplan review -->"
    assert marker in text and f"echo '{marker}'" in (DOCS / "review.sh").read_text()
    for run in [*runs, (DOCS / "review.sh").read_text()]:
        # An expression in a script would let a branch's name be code.
        assert "${{" not in run
        done = subprocess.run(["bash", "-n"], input=run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    comment = next(step for step in job["steps"] if step.get("name") == "Comment")
    assert "head.repo.full_name == github.repository" in comment["if"], "a fork's token cannot write"
