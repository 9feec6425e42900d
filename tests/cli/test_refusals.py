"""Bad input that takes more than an edit of a file: faults that are told together, and what is no file."""

import json
import os
import shutil

import pytest

from .command_line import refused, rlplan
from .solved_folder import edit, harmed, listing

pytestmark = pytest.mark.timeout(120)  # much of what is refused here once never ended


def test_the_faults_of_all_documents_are_told_at_once(solved):
    harmed(solved, [("job.yaml", "kind: math", "kind: maths"), ("job.yaml", "deadline_s: 2.0", "deadline: 2.0"),
                    ("cluster.yaml", "cores: 2", "cores: 1"), ("profile.yaml",)])  # fmt: skip
    result = rlplan("solve", solved)
    assert result.returncode == 2
    places = [line.removeprefix(f"error: {solved}/").split(": ")[0] for line in result.stderr.splitlines()]
    assert places == ["job.yaml:5", "job.yaml:5", "cluster.yaml:6", "profile.yaml"]


@pytest.mark.parametrize("name", ["plan.yaml", "groups.yaml"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_plan_that_was_cut_off_is_refused(name, share, solved, solved_groups):
    text = ((solved if name == "plan.yaml" else solved_groups) / name).read_text()
    (solved / "cut.yaml").write_text(text[: int(share * len(text))])
    refused(rlplan("show", solved / "cut.yaml"), "cut.yaml")
    refused(rlplan("execute", solved / "cut.yaml", "--out", solved / "out"), "cut.yaml")
    assert not (solved / "out").exists()


INPUTS = {
    "cluster.yaml": ("solve {at} --mode sync -o {at}/new.yaml", "check {at}/cluster.yaml", "simulate {at}/plan.yaml"),
    "job.yaml": ("solve {at} -o {at}/new.yaml", "profile {at} --shipped Qwen2.5-7B"),
    "profile.yaml": ("solve {at} -o {at}/new.yaml", "simulate {at}/plan.yaml"),
    "lengths.jsonl": ("solve {at} -o {at}/new.yaml", "simulate {at}/plan.yaml"),
    "data.jsonl": ("solve {at} -o {at}/new.yaml", "execute {at}/plan.yaml --dry-run"),
    "plan.yaml": ("show {at}/plan.yaml", "execute {at}/plan.yaml --dry-run", "diff {at}/plan.yaml none"),
}


@pytest.mark.parametrize("stand_in", ["a pipe", "/dev/zero", "a folder"])
@pytest.mark.parametrize("name", INPUTS)
def test_what_is_no_file_is_refused_as_an_input(name, stand_in, solved):
    path = solved / name
    path.unlink()
    if stand_in == "a pipe":
        os.mkfifo(path)
    elif stand_in == "/dev/zero":
        path.symlink_to(stand_in)
    else:
        path.mkdir()
    for command in INPUTS[name]:
        result = rlplan(*command.format(at=solved).split())
        assert result.returncode == 2 and name in result.stdout + result.stderr, command
        assert "Traceback" not in result.stderr
    assert not (solved / "new.yaml").exists()


def test_a_wrong_ray_address_is_refused_before_anything_is_written(solved, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1")
    before = listing(solved)
    execute = ("execute", solved / "plan.yaml", "--out", solved / "run")
    for command in ((*execute, "--dry-run", "--json"), execute, ("profile", solved, "--force")):
        refused(rlplan(*command), "RAY_ADDRESS: is '10.0.0.1'; write HOST:PORT")
    assert listing(solved) == before


def test_a_run_of_too_many_samples_names_the_steps_simulated(solved):
    edit(solved / "job.yaml", "prompts_per_step: 4, samples", "prompts_per_step: 4096, samples")
    edit(solved / "job.yaml", "samples_per_prompt: 2", "samples_per_prompt: 8")
    sets = [f"--set=job.rollout.{key}" for key in ("prompts_per_step=4096", "samples_per_prompt=8")]
    (solved / "data.jsonl").unlink()
    result = rlplan("simulate", solved / "plan.yaml", *sets, "--steps", "90000")
    [line] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 2 and "2,949,120,000 samples" in line and "write at most 1525 steps" in line


RUN_ROW = {
    "event": "sample", "t_s": 1.0, "step": 1, "prompt": "a", "epoch": 0, "draw": 0, "sample": 0, "tokens": 5,
    "prompt_tokens": 3, "truncated": False, "reward": 1.0, "fate": "trained",
}  # fmt: skip


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (json.dumps(RUN_ROW | {"reward": "good"}), "reward of a sample is 'good': expected float | null, got str"),
        (json.dumps(RUN_ROW | {"tokens": 99_999_999_999}), "tokens of a sample is 99999999999: expected int"),
        (json.dumps(RUN_ROW | {"draw": 10**12}), "draw of a sample is 1000000000000"),
        ("[" * 200_000, "not a trace event"),
        (None, "pipe"),
    ],
    ids=["a word for a reward", "many tokens", "many draws", "no event", "a pipe"],
)
def test_a_trace_that_no_run_writes_is_refused(trace, said, solved):
    run = solved / "run"
    run.mkdir()
    shutil.copy(solved / "plan.yaml", run)
    if trace is None:
        os.mkfifo(run / "trace.jsonl")
        refused(rlplan("execute", solved / "plan.yaml", "--dry-run", "--out", run), "trace.jsonl", "pipe")
    else:
        (run / "trace.jsonl").write_text(trace + "\n")
    refused(rlplan("report", run), "trace.jsonl", said)
    refused(rlplan("tune", run), "trace.jsonl", said if trace else "")


def test_a_folder_that_holds_a_run_is_not_overwritten(solved):
    (solved / "out").mkdir()
    (solved / "out" / "trace.jsonl").write_text('{"event":"step","t_s":1.0}\n')
    refused(rlplan("execute", solved / "plan.yaml", "--out", solved / "out"), "--resume")


WRITERS = {
    "plan": "solve {at} --mode sync --out",
    "page": "show {at}/plan.yaml --html",
    "timeline": "simulate {at}/plan.yaml --steps 2 --timeline",
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_strangers_file_is_overwritten_on_force_only(kind, solved):
    words = WRITERS[kind].format(at=solved).split()
    notes = solved / "notes.txt"
    notes.write_text("call the landlord\n")
    before = listing(solved)
    refused(rlplan(*words, notes), "notes.txt: exists and is no", "--force")
    assert listing(solved) == before
    assert rlplan(*words, notes, "--force").returncode == 0
    assert notes.read_bytes() != before["notes.txt"]
    assert rlplan(*words, notes).returncode == 0, "it is ours now"
    shutil.copy(solved / "cluster.yaml", solved / "other.yaml")
    refused(rlplan(*words, solved / "other.yaml"), "other.yaml: exists and is a document, and a ")
