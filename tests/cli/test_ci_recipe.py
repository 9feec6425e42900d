"""The recipe of docs/ci, run as a CI job runs it: a repository with two branches, plans with their inputs on `main`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rlplan as package
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.profiles.fitness import subject_digest

from .command_line import printed
from .fork_server import CLIENT
from .solved_folder import edit

DOCS = Path(package.__file__).parent / "docs" / "ci"
NOBODY = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.c",
}  # fmt: skip
WEIRD = 'we"ird\té \\ a=b.yaml'


@pytest.fixture(scope="module")
def states(solved_once, tmp_path_factory):
    """The folder as it is on main, and on the branch: the job changed, and was profiled and solved again."""
    main = tmp_path_factory.mktemp("main") / "job"
    shutil.copytree(solved_once, main)
    printed("solve", main, "--mode", "race")
    branch = shutil.copytree(main, tmp_path_factory.mktemp("branch") / "job")
    edit(branch / "job.yaml", "prompts_per_step: 4", "prompts_per_step: 6")
    old, new = (
        subject_digest(load_job(f), job_paths(load_job(f), f)) for f in (main / "job.yaml", branch / "job.yaml")
    )
    edit(branch / "profile.yaml", old, new)
    printed("solve", branch, "--mode", "race")
    for folder in (main, branch):
        shutil.rmtree(folder / ".rlplan")
    return main, branch


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A socket at which `rlplan` answers without starting anew."""
    path = tmp_path_factory.mktemp("server") / "s"
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("fork_server.py"), path],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **NOBODY},
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    yield path
    process.kill()
    process.wait()


class Repository:
    """A git repository whose branch `main` has what the test wrote before `leave`."""

    def __init__(self, root, server):
        self.root = root
        (root.parent / "bin").mkdir()
        command = root.parent / "bin" / "rlplan"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S -c \'{CLIENT}\' "{server}" "$@"\n')
        command.chmod(0o755)
        self.environment = {**os.environ, **NOBODY, "PATH": f"{root.parent / 'bin'}:{os.environ['PATH']}"}
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments):
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-qm", "change")

    def leave(self):
        """Commit to `main`, and go on in a branch."""
        self.commit()
        self.git("switch", "-qc", "branch")

    def review(self, *options, script=DOCS / "review.sh", cwd=None, **environment):
        """The recipe's result, and the comment that it wrote."""
        out = self.root.parent / "review.md"
        done = subprocess.run(
            ["sh", str(script), "--base", "main", "--out", str(out), *options],
            cwd=cwd or self.root, env={**self.environment, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done, out.read_text() if out.exists() else ""


@pytest.fixture
def repository(server, tmp_path):
    (tmp_path / "repository").mkdir()
    return Repository(tmp_path / "repository", server)


def test_each_plan_that_a_branch_touches_is_reviewed(repository, states, solved_groups, tmp_path):
    main, branch = states
    root, text = repository.root, (main / "plan.yaml").read_text()
    for name in ("solved", "stale", "formed", "forbidden", "unheld"):
        shutil.copytree(main, root / name)
    formed = root / "formed"
    for name in ("misspelt", "other", "broken"):
        (formed / f"{name}.yaml").write_text(text)
    (formed / "renamed.yaml").write_text(text.replace("\nrlplan: 1", "\n# renamed\nrlplan: 1"))
    shutil.copy(solved_groups / "groups.yaml", formed / "removed.yaml")
    (formed / "old.yaml").write_text("rlplan: 0\nold: format\n")
    (root / "stale" / "plan.yaml").rename(root / "stale" / WEIRD)
    repository.leave()
    for name in ("job.yaml", "profile.yaml", "plan.yaml"):
        shutil.copy(branch / name, root / "solved")
    edit(root / "stale" / "job.yaml", "tp: [1]", "tp: [1, 2]")
    edit(formed / "plan.yaml", "gap: 0.0\n", "gap:   0.00\n")
    (formed / "renamed.yaml").rename(formed / "moved.yaml")
    (formed / "removed.yaml").unlink()
    (formed / "new.yaml").write_text(text.replace("\nrlplan: 1", "\n# new\nrlplan: 1"))
    (formed / "quoted.yaml").write_text(text.replace("\nrlplan: 1", '\n"rlplan" : 1'))
    edit(formed / "misspelt.yaml", "\nrlplan: 1", "\nrlpan: 1")
    shutil.copy(main / "cluster.yaml", formed / "other.yaml")
    (formed / "broken.yaml").write_text("rlplan: 1\nx: [\n")
    (formed / "old.yaml").write_text(text)
    (root / "forbidden" / "rlplan.policy.yaml").write_text("rlplan_policy: 1\nforbidden_modes: [race]\n")
    (root / "unheld" / "rlplan.policy.yaml").write_text("rlplan_policy: 1\nmax_bais: 0.1\n")
    shutil.copy(root / "unheld" / "plan.yaml", root / "unheld" / "second.yaml")
    repository.commit()
    outputs = tmp_path / "outputs"
    done, comment = repository.review("--format", "github", GITHUB_OUTPUT=str(outputs))
    assert done.returncode == 1 and outputs.read_text() == "plans=14\n", done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {line for line in lines if line.startswith("plan ")} == {
        "plan solved/plan.yaml: ok", f"plan stale/{WEIRD}: findings", "plan forbidden/plan.yaml: findings",
        "plan formed/plan.yaml: ok", "plan formed/moved.yaml: ok", "plan formed/removed.yaml: ok",
        "plan formed/new.yaml: ok", "plan formed/quoted.yaml: ok", "plan formed/misspelt.yaml: findings",
        "plan formed/other.yaml: no plan any more", "plan formed/broken.yaml: findings",
        "plan formed/old.yaml: ok",
        *(f"plan unheld/{n}.yaml: ok, but not held against unheld/rlplan.policy.yaml" for n in ("plan", "second")),
    }  # fmt: skip
    assert "14 plan(s) against main, 5 do not pass, 1 policy file(s) cannot be read; the comment is in" in lines[-1]
    for error in (
        "formed/misspelt.yaml",
        "unheld/rlplan.pol",
    ):
        assert sum(line.startswith(f"::error file={error}") for line in lines) == 1, error
    parts = {part.split("\n")[0].strip("`"): part for part in comment.split("\n### ")}
    assert comment.startswith("<!-- rlplan review -->\n") and comment.count("max_bais") == 1
    solved = parts["solved/plan.yaml"]
    assert "| `job.rollout.prompts_per_step` | `4` | `6` |" in solved, "the input"
    assert "\n| `rounds.short.issue.prompts` | `" in solved, "a decision"
    assert "seconds per sample" in solved and "USD per 1000 samples" in solved and "Does not pass" not in solved
    [stale] = [part for name, part in parts.items() if name.startswith("stale/")]
    assert "**Does not pass: findings**" in stale and "has changed since the new plan was solved" in stale
    assert "Does not pass" not in parts["formed/plan.yaml"] and "same: " in parts["formed/plan.yaml"]
    assert "same: decisions" in parts["formed/renamed.yaml -> formed/moved.yaml"]
    assert "plan removed: 2 jobs in 1 group" in parts["formed/removed.yaml"]
    assert "new plan: toy by mode race" in parts["formed/new.yaml"] + parts["formed/old.yaml"]
    assert "unknown key" in parts["formed/old.yaml"] and "Does not pass" not in parts["formed/old.yaml"]
    assert "its first key" in parts["formed/misspelt.yaml"] and "not valid YAML" in parts["formed/broken.yaml"]
    assert "race" in parts["forbidden/plan.yaml"] and "same: decisions" in parts["forbidden/plan.yaml"]


def test_a_branch_that_touches_no_plan_has_no_review(repository, states):
    plans = shutil.copytree(states[0], repository.root / "plans")
    repository.leave()
    (repository.root / "notes.txt").write_text("x\n")
    repository.commit()
    repository.git("switch", "-q", "main")
    edit(plans / "job.yaml", "tp: [1]", "tp: [1, 2]")
    repository.commit()
    repository.git("switch", "-q", "branch")
    done, comment = repository.review(cwd=plans)
    assert done.returncode == 0 and comment == "<!-- rlplan review -->\nNo plan differs from `main`.\n"


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        (("--base", "nowhere"), {}, "no common history with 'nowhere'"),
        (("--what",), {}, "usage: review.sh"),
        (("--format", "xml"), {}, "usage: review.sh"),
        ((), {"PATH": "/usr/bin:/bin"}, "rlplan is not installed"),
    ],
)
def test_a_review_that_cannot_be_made_exits_with_two(options, environment, words, repository):
    (repository.root / "notes.txt").write_text("x\n")
    repository.leave()
    done, comment = repository.review(*options, **environment)
    assert done.returncode == 2 and comment == ""
    assert words in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_comment_stays_below_what_github_takes(repository, states, tmp_path):
    (repository.root / "notes.txt").write_text("x\n")
    repository.leave()
    shutil.copytree(states[0], repository.root / "plans")
    for number in range(2):
        shutil.copy(states[0] / "plan.yaml", repository.root / "plans" / f"plan{number}.yaml")
    repository.commit()
    small = tmp_path / "review.sh"
    script = (DOCS / "review.sh").read_text()
    assert "\nLIMIT=55000 " in script, "GitHub takes 65,536 characters"
    small.write_text(script.replace("LIMIT=55000", "LIMIT=3000"))
    done, comment = repository.review(script=small)
    assert "3 plan(s) against main" in done.stdout, done.stdout + done.stderr
    assert len(comment.encode()) < 3200 and "Left out" in comment


def test_the_workflow_parses_grants_little_and_its_shell_is_sound():
    text, script = (DOCS / "github-action.yml").read_text(), (DOCS / "review.sh").read_text()
    workflow = yaml.safe_load(text)
    triggers = workflow[True]  # YAML 1.1 reads the key `on` as true
    assert list(triggers) == ["pull_request"], "never pull_request_target: it runs forks' code with a token that writes"
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    [job] = workflow["jobs"].values()
    checkout = next(step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"]["fetch-depth"] == 0 and checkout["with"]["persist-credentials"] is False
    runs = [step["run"] for step in job["steps"] if "run" in step]
    marker = "<!-- rlplan review -->"
    assert any("docs/ci/review.sh" in run for run in runs) and marker in text and f"echo '{marker}'" in script
    for run in [*runs, script]:
        assert "${{" not in run, "an expression in a script would let a branch's name be code"
        done = subprocess.run(["bash", "-n"], input=run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    comment = next(step for step in job["steps"] if step.get("name") == "Comment")
    assert "head.repo.full_name == github.repository" in comment["if"], "a fork's token cannot write"
