"""Documents of strangers: what `execute` would run is told and asked, and nothing else runs any of it."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from rlplan.cli.shared.tokens_of import tokens_by
from rlplan.executor.records.model_export import _description
from rlplan.executor.rollout.prompts import load_tokenizer
from rlplan.plans.files import judge_prompt
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.library.fitness import subject_digest
from rlplan.profiles.measure.measure_job import parameter_count

from ..planner.check.edits import edit, resign
from .command_line import data, printed, refused, rlplan

FUNCTION = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
FUNCTION += "def score(prompt, response, answer):\n    return 1.0\n"


def measured_anew(folder):
    """Make the profile one of the job as it is, and the plan one of these."""
    job = load_job(folder / "job.yaml")
    edit(folder / "profile.yaml", {"measured": subject_digest(job, job_paths(job, folder / "job.yaml"))})
    resign(folder)


def not_run(*arguments):
    """What `rlplan ARGUMENTS...` says when it refuses to run a plan."""
    result = rlplan(*arguments)
    refused(result)
    return result.stderr


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rlplan" / "trusted"


@pytest.fixture
def with_function(solved, home):
    """A plan of a job with a reward function, whose module leaves a mark when it is imported."""
    (solved / "mine.py").write_text(FUNCTION)
    edit(solved / "job.yaml", {"reward.kind": "function", "reward.function": "mine:score"})
    measured_anew(solved)
    return solved


@pytest.fixture
def executed(monkeypatch):
    """Which plans the executor was given."""
    made = []
    monkeypatch.setattr("rlplan.executor.execute.execute", lambda executions, *_: made.append(executions) or True)
    return made


def foreign(monkeypatch, *names):
    """From now on files of these names belong to another user."""
    own = os.stat

    def stat(path, *arguments, **options):
        found = own(path, *arguments, **options)
        if Path(os.fspath(path) if not isinstance(path, int) else "").name in names:
            return os.stat_result([*found[:4], os.geteuid() + 7, *found[5:10]])
        return found

    monkeypatch.setattr(os, "stat", stat)


def test_a_plan_of_the_users_own_is_executed_without_a_question(with_function, executed, home):
    printed("execute", with_function / "plan.yaml", "--out", with_function / "run")
    assert len(executed) == 1 and not home.exists()


@pytest.mark.parametrize("name", ["plan.yaml", "job.yaml", "mine.py", "beside.py"])
def test_what_a_stranger_wrote_is_not_executed_without_a_yes(name, with_function, executed, home, monkeypatch):
    (with_function / "beside.py").write_text("")
    foreign(monkeypatch, name)
    plan, run = with_function / "plan.yaml", ("--out", with_function / "run")
    told = not_run("execute", plan, *run)
    found = data("execute", plan, *run, "--dry-run")["trust"]
    assert f"{name} belongs to another user" in told and f"add --trust {found['digest']}" in told and not executed
    assert [Path(path).name for path in found["of_others"]] == [name]
    assert "by now" in not_run("execute", plan, *run, "--trust", "0123456789abcdef") and not executed
    printed("execute", plan, *run, "--trust", found["digest"])
    printed("execute", plan, *run)  # it was accepted once
    assert len(executed) == 2 and len(home.read_text().split()) == 1
    with (with_function / name).open("a") as file:
        file.write("\n# another line\n")
    if name == "job.yaml":
        resign(with_function)
    assert f"{name} belongs to another user" in not_run("execute", plan, *run) and len(executed) == 2
    printed("execute", plan, *run, "--trust", "any")


def test_a_file_that_everybody_may_write_is_a_strangers(with_function, executed, home):
    (with_function / "mine.py").chmod(0o666)
    assert "mine.py may be written by everybody" in not_run("execute", with_function / "plan.yaml")


def test_a_dry_run_names_every_path_and_function(with_function):
    lines = printed("execute", with_function / "plan.yaml", "--dry-run", "--out", "runs/here", folder=with_function)
    told = [line.split(maxsplit=1) for line in lines.splitlines()[:-1]]
    assert told[:-1] == [
        ["reads", "plan.yaml"], ["reads", "cluster.yaml"], ["reads", "job.yaml"], ["reads", "profile.yaml"],
        ["reads", "lengths.jsonl"], ["reads", "data.jsonl"], ["loads", "model model"],
        ["runs", "reward function mine:score of mine.py, as this user, without limits on files"],
        ["writes", "runs/here"],
    ]  # fmt: skip
    assert told[-1][0] == "digest" and not (with_function / "ran").exists()


@pytest.mark.parametrize(("answer", "runs"), [(b"y", True), (b"n", False)])
def test_a_person_is_asked_once_at_a_terminal(answer, runs, with_function, home):
    (with_function / "mine.py").chmod(0o666)
    script = (
        "import sys; import rlplan.executor.execute as x; x.execute = lambda *_: print('RUNS') or True; "
        "sys.argv[0] = 'rlplan'; from rlplan.cli.main import main; main()"
    )
    command = [sys.executable, "-c", script, "execute", "plan.yaml", "--out", "run"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "dumb"}
    for asked in (True, not runs):
        mine, theirs = pty.openpty()
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=with_function, env=environment
        )
        os.close(theirs)
        said = b""
        while select.select([mine], [], [], 60)[0]:
            try:
                part = os.read(mine, 4096)
            except OSError:
                break
            said += part
            if b"Run it?" in said and answer:
                os.write(mine, answer + b"\n")
                answer = answer if not runs else b""
                said = said.replace(b"Run it?", b"Asked.")
        os.close(mine)
        assert process.wait(60) == (0 if runs else 2), said
        assert (b"Asked." in said, b"RUNS" in said) == (asked, runs), said
        if asked:
            assert b"reward function mine:score" in said and b"may be written by everybody" in said


HOSTILE_YAML = {
    "a Python object": "name: !!python/object/apply:os.system ['touch {mark}']",
    "a Python name": "name: !!python/name:os.system",
    "a merge of itself": "name: &a [*a]",
    "a path out of the folder": "data: {{path: ../../../../../../etc/passwd, seed: 0}}",
    "a template": "name: '{{{{ self.__init__.__globals__ }}}}'",
}


def looking(folder):
    """Commands that look at documents or solve them, each with its arguments."""
    plan, job = folder / "plan.yaml", folder / "job.yaml"
    return [
        ("check", plan), ("check", job), ("show", plan), ("show", plan, "--json"), ("diff", plan, plan),
        ("audit", plan), ("simulate", plan, "--steps", "2"), ("solve", job, "--out", folder / "again.yaml"),
        ("execute", plan, "--dry-run"), ("export", plan, "--to", "verl", "--out", folder / "exported"),
        ("lengths", "list"), ("rewards", "list"), ("compare", job),
    ]  # fmt: skip


def test_nothing_but_execute_runs_what_documents_name(with_function):
    """A module that leaves a mark when it is imported, also under names that the standard library has; a model with
    code of its own, a template that attacks."""
    for name in ("json.py", "yaml.py", "conftest.py", "sitecustomize.py", "modeling_own.py"):
        (with_function / name).write_text(FUNCTION)
    model = with_function / "model"
    shape = json.loads((model / "config.json").read_text())
    shape |= {"auto_map": {"AutoConfig": "modeling_own.Config", "AutoModelForCausalLM": "modeling_own.Model"}}
    (model / "config.json").write_text(json.dumps(shape))
    (model / "modeling_own.py").write_text(FUNCTION)
    attack = "{{ ''.__class__.__mro__[1].__subclasses__() }}{% for x in range(10**9) %}x{% endfor %}"
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": attack}))
    measured_anew(with_function)
    ended = {}
    for command in looking(with_function):
        result = rlplan(*command, folder=with_function)
        assert "Traceback" not in result.stderr, (command, result.stderr)
        ended[command[0], command[1]] = result.returncode
    assert not [*with_function.rglob("ran")]
    done = [name for (name, _), code in ended.items() if code == 0]
    assert {"check", "show", "diff", "simulate", "solve", "execute"} <= set(done), ended


def test_a_models_own_code_is_not_run_even_if_somebody_says_yes(tmp_path, monkeypatch):
    """transformers asks on the terminal, in the midst of other output, whether it may."""
    model = tmp_path / "model"
    model.mkdir()
    mark = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    (model / "own.py").write_text(f"{mark}\nclass Tokenizer: ...\nclass Config: ...\n")
    own = {"AutoTokenizer": ["own.Tokenizer", None], "AutoConfig": "own.Config"}
    (model / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Tokenizer", "auto_map": own}))
    for loads in (load_tokenizer, tokens_by, judge_prompt._tokenizer, _description, parameter_count):
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
        with pytest.raises((InputError, ValueError)):
            loads(Path(model) if loads is judge_prompt._tokenizer else str(model))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", HOSTILE_YAML)
@pytest.mark.parametrize("file", ["plan.yaml", "job.yaml", "cluster.yaml", "profile.yaml", "rlplan.policy.yaml"])
def test_a_hostile_document_is_refused_and_runs_nothing(kind, file, solved, tmp_path):
    mark = tmp_path / "ran"
    path = solved / file
    line = HOSTILE_YAML[kind].format(mark=mark)
    text = path.read_text() if path.exists() else "rlplan_policy: 1\n"
    text, places = re.subn(rf"(?m)^{line.split(':')[0]}: .*", lambda _: line, text)
    path.write_text(text if places else f"{text}{line}\n")
    for command in looking(solved)[:8]:
        result = rlplan(*command, folder=solved)
        assert "Traceback" not in result.stderr and "root:" not in result.stdout + result.stderr, (command, result)
        assert result.returncode in (0, 1, 2, 3)
    assert rlplan("check", path).returncode in (1, 2)
    assert not mark.exists()
