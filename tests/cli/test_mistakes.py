"""What a stranger gets wrong in the first hour, by command: answered at once, in one line, with nothing lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from rlplan.planner.check.accelerator_rules import accelerator_fault
from rlplan.plans.schema.cluster import Accelerators
from rlplan.plans.schema.limits import MOST_PROMPTS_PER_STEP, MOST_SAMPLES_PER_STEP
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import loads

from .command_line import refused, rlplan
from .solved_folder import edit, listing

pytestmark = pytest.mark.timeout(120)  # much of what is tested here once never ended

NEW = ("--mode", "sync", "-o")


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("prompts_per_step", "prompts_per_step: 4", f"prompts_per_step: {MOST_PROMPTS_PER_STEP + 1}"),
        ("prompts_per_step", "prompts_per_step: 4", "prompts_per_step: 1000000"),
        ("prompts_per_step", "prompts_per_step: 4", "prompts_per_step: 10000000"),
        ("samples_per_prompt", "samples_per_prompt: 2", f"samples_per_prompt: {MOST_SAMPLES_PER_STEP + 1}"),
        ("prompts_per_step", "samples_per_prompt: 2", f"samples_per_prompt: {MOST_SAMPLES_PER_STEP // 2}"),
        ("max_response_tokens", "max_response_tokens: 64", "max_response_tokens: 1000000000000"),
        ("micro_batch_tokens", "micro_batch_tokens: [128]", f"micro_batch_tokens: {list(range(128, 1128))}"),
    ],
)
def test_a_job_beyond_what_is_planned_is_refused_at_its_line_with_and_without_its_data(key, old, new, solved):
    line = edit(solved / "job.yaml", old, new)
    for _ in range(2):
        refused(rlplan("solve", solved, *NEW, solved / "new.yaml"), f"job.yaml:{line}: ", key, "most")
        simulated = rlplan("simulate", solved / "plan.yaml")
        assert simulated.returncode == 2 and f"job.yaml:{line}: " in simulated.stderr and "most" in simulated.stderr
        (solved / "data.jsonl").unlink(missing_ok=True)


def test_the_largest_job_that_is_planned_is_a_document(solved):
    edit(solved / "job.yaml", "prompts_per_step: 4", f"prompts_per_step: {MOST_PROMPTS_PER_STEP}")
    result = rlplan("fmt", solved / "job.yaml", "--check")
    assert result.returncode in (0, 1) and not result.stderr


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--steps", "1000000000", "not in the range 1<=x<=100000"),
        ("--prompts", "1000000000000", "not in the range"),
        ("--switch-s", "inf", "inf"),
        ("--drift", "nan", "nan is no finite number"),
        ("--set", "plan.job.rounds.short.issue.prompts=1000000000", "at most 8000000 can be simulated"),
        ("--set", "job.rollout.prompts_per_step=1000000", "at most 131072"),
    ],
)
def test_a_simulation_that_would_not_end_is_refused_at_once(option, value, said, solved):
    refused(rlplan("simulate", solved / "plan.yaml", option, value), said)


def test_a_run_of_more_samples_than_are_simulated_is_refused_with_the_steps_that_are(solved):
    edit(
        solved / "job.yaml",
        "prompts_per_step: 4, samples_per_prompt: 2",
        "prompts_per_step: 4096, samples_per_prompt: 8",
    )
    sets = [f"--set=job.rollout.{key}" for key in ("prompts_per_step=4096", "samples_per_prompt=8")]
    (solved / "data.jsonl").unlink()
    result = rlplan("simulate", solved / "plan.yaml", *sets, "--steps", "90000")
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 2 and len(lines) == 1
    assert "2,949,120,000 samples" in lines[0] and "write at most 1525 steps" in lines[0]


INPUTS = {
    "cluster.yaml": ("solve {at} --mode sync -o {at}/new.yaml", "check {at}/cluster.yaml", "simulate {at}/plan.yaml"),
    "job.yaml": ("solve {at} -o {at}/new.yaml", "fmt {at}/job.yaml", "profile {at} --shipped Qwen2.5-7B"),
    "profile.yaml": ("solve {at} -o {at}/new.yaml", "simulate {at}/plan.yaml"),
    "lengths.jsonl": ("solve {at} -o {at}/new.yaml", "simulate {at}/plan.yaml"),
    "data.jsonl": ("solve {at} -o {at}/new.yaml", "execute {at}/plan.yaml --dry-run"),
    "plan.yaml": ("show {at}/plan.yaml", "execute {at}/plan.yaml --dry-run", "diff {at}/plan.yaml none"),
}  # fmt: skip


@pytest.mark.parametrize("stand_in", ["a pipe", "/dev/zero", "a folder"])
@pytest.mark.parametrize("name", INPUTS)
def test_what_is_no_file_in_place_of_an_input_is_refused_by_every_command(name, stand_in, solved):
    path = solved / name
    path.unlink()
    if stand_in == "a pipe":
        os.mkfifo(path)
    elif stand_in == "/dev/zero":
        path.symlink_to(stand_in)
    else:
        path.mkdir()
    for command in INPUTS[name]:
        result = rlplan(*(word.format(at=solved) for word in command.split()))
        assert result.returncode == 2 and name in result.stdout + result.stderr, command
        assert "Traceback" not in result.stderr
    assert not (solved / "new.yaml").exists()


def test_a_runs_trace_that_is_a_pipe_is_refused_by_report_tune_and_execute(solved):
    (solved / "run").mkdir()
    (solved / "run" / "plan.yaml").write_bytes((solved / "plan.yaml").read_bytes())
    os.mkfifo(solved / "run" / "trace.jsonl")
    refused(rlplan("report", solved / "run"), "trace.jsonl", "pipe")
    refused(rlplan("tune", solved / "run"), "trace.jsonl")
    refused(rlplan("execute", solved / "plan.yaml", "--dry-run", "--out", solved / "run"), "trace.jsonl", "pipe")


def test_more_reward_workers_than_cores_are_refused_by_solve_at_the_jobs_line(solved):
    line = edit(solved / "job.yaml", "workers: 1", "workers: 100000")
    result = rlplan("solve", solved, *NEW, solved / "new.yaml", "--force")
    refused(result, f"job.yaml:{line}: reward.workers: 100000 reward workers", "2 host cores", "write at most 2")
    assert not (solved / "new.yaml").exists()


def gpus(solved, **changes):
    """The cluster as one of GPUs, with some values changed; the line of its accelerators."""
    values = {"kind": "cuda", "name": "H100", "per_node": 8, "memory_bytes": 80_000_000_000} | changes
    text = ", ".join(f"{key}: {value}" for key, value in values.items())
    edit(solved / "cluster.yaml", "cores: 2", "cores: 64")
    return edit(
        solved / "cluster.yaml", "{kind: cpu, name: core, per_node: 2, memory_bytes: 1000000000}", "{" + text + "}"
    )


@pytest.mark.parametrize("command", [("solve",), ("profile", "--shipped", "Qwen2.5-7B", "--out", "{at}/new.yaml")])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "gpu"}, ("must be 'cpu' or 'cuda', not 'gpu'; did you mean 'cuda'?",)),
        ({"kind": "cpu"}, ("accelerators.kind: is cpu, and 'H100' is the name of a GPU; write kind: cuda",)),
        (
            {"memory_bytes": 640_000_000_000},
            ("memory_bytes: is 640 GB, and no H100 has more than 96 GB", "not of a node"),
        ),
    ],
)
def test_accelerators_that_cannot_be_what_they_are_called_are_refused_in_words_that_help(
    command, changes, said, solved
):
    line = gpus(solved, **changes)
    words = [word.format(at=solved) for word in command]
    refused(rlplan(words[0], solved, *words[1:]), f"cluster.yaml:{line}: ", *said)


@pytest.mark.parametrize(
    ("name", "gigabytes", "fits"),
    [("H100", 80, True), ("NVIDIA H100 NVL", 94, True), ("H100", 85.9, True), ("H100", 160, False), ("A100", 40, True),
     ("H20", 141, True), ("B200", 192, True), ("B200", 1440, False), ("MI300X", 1536, True)],
)  # fmt: skip
def test_memory_that_some_card_of_a_name_has_is_believed_and_that_of_a_node_is_not(name, gigabytes, fits):
    accelerators = Accelerators(kind="cuda", name=name, per_node=8, memory_bytes=int(gigabytes * 1e9))
    assert (accelerator_fault(accelerators) is None) == fits


def test_a_gpu_of_80_mb_is_told_as_80_mb(solved):
    gpus(solved, memory_bytes=80_000_000)
    assert rlplan("profile", solved, "--shipped", "Qwen2.5-7B", "--force").returncode == 0
    edit(solved / "job.yaml", "path: model,", "path: Qwen/Qwen2.5-7B-Instruct,")
    edit(solved / "job.yaml", "dtype: float32", "dtype: bfloat16")
    result = rlplan("solve", solved, "--trace", solved / "lengths.jsonl", *NEW, solved / "new.yaml")
    assert result.returncode == 3 and "those of pool 'main' have 80 MB" in result.stderr, result.stderr


@pytest.mark.parametrize("command", ["tune", "report"])
def test_a_file_in_place_of_a_runs_folder_is_told_as_what_it_is(command, solved):
    refused(rlplan(command, solved / "plan.yaml"), "is a plan, and the folder of a run is needed; execute the plan")
    refused(rlplan(command, solved / "job.yaml"), "is a job document, and the folder of a run is needed")
    refused(rlplan(command, solved / "data.jsonl"), "is a file, and the folder of a run is needed")


WRITERS = {
    "plan": "solve {at} --mode sync --out",
    "page": "show {at}/plan.yaml --html",
    "timeline": "simulate {at}/plan.yaml --steps 2 --timeline",
}


@pytest.mark.parametrize("kind", WRITERS)
def test_somebodys_notes_are_overwritten_on_force_only_and_our_own_files_again_and_again(kind, solved):
    words = WRITERS[kind].format(at=solved).split()
    notes = solved / "notes.txt"
    notes.write_text("call the landlord\n")
    before = listing(solved)
    refused(rlplan(*words, notes), "notes.txt: exists and is no", "--force")
    assert listing(solved) == before
    assert rlplan(*words, notes, "--force").returncode == 0
    assert notes.read_bytes() != before["notes.txt"]
    assert rlplan(*words, notes).returncode == 0, "it is ours now"


def test_a_plan_is_not_written_over_a_document_of_another_kind(solved):
    (solved / "other.yaml").write_bytes((solved / "cluster.yaml").read_bytes())
    refused(rlplan("solve", solved, "--out", solved / "other.yaml"), "other.yaml: exists and is a document, and a plan")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_name_that_is_too_long_is_refused_before_the_work(kind, solved):
    result = rlplan(*WRITERS[kind].format(at=solved).split(), solved / ("n" * 256))
    refused(result, "has 256 bytes, and a file's name may have 255")


def test_a_dash_for_an_output_is_standard_output_and_the_words_go_to_standard_error(solved):
    solve = ("solve", solved, "--mode", "sync", "--out", "-")
    result = rlplan(*solve)
    assert result.returncode == 0, result.stderr
    plan = loads(result.stdout, Plan)
    assert plan.job.bias.mode == "sync" and "s a step" in result.stderr and "rlplan show -" not in result.stderr
    assert plan.inputs.job.path == str(solved / "job.yaml").removeprefix("/"), "relative to the folder that one is in"
    page = rlplan("show", solved / "plan.yaml", "--html", "-")
    assert page.stdout.startswith("<!DOCTYPE html>") and page.stdout.endswith("</html>\n") and "a step" in page.stderr
    timeline = rlplan("simulate", solved / "plan.yaml", "--steps", "2", "--timeline", "-")
    assert json.loads(timeline.stdout)["traceEvents"] and "per trained sample" in timeline.stderr
    shown = rlplan("show", solved / "plan.yaml", "--timeline", "-")
    assert json.loads(shown.stdout)["traceEvents"]
    for command in (solve, ("show", solved / "plan.yaml", "--html", "-")):
        refused(rlplan(*command, "--json"), "both write to standard output")
    assert not (solved / "-").exists() and not (solved.parent / "-").exists()


def test_a_dash_is_no_folder_and_no_place_for_files_beside_a_plan(solved):
    refused(rlplan("execute", solved / "plan.yaml", "--dry-run", "--out", "-"), "is standard output, and a folder")
    refused(rlplan("profile", solved, "--out", "-"), "the length trace is written beside a measured profile")


@pytest.mark.parametrize(
    ("redirection", "said"), [("> /dev/full", "error: No space left on device"), ("| head -c 1 > /dev/null", "")]
)
def test_a_standard_output_that_takes_nothing_is_one_line_and_no_traceback(redirection, said, solved):
    words = f"{sys.executable} -m rlplan.cli.main show {solved}/plan.yaml --json {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False, cwd="/")
    assert done.stderr.strip() == said
    assert done.returncode == (1 if said else done.returncode)


def test_a_machine_without_memory_is_one_line(monkeypatch, capsys):
    from rlplan.cli import main

    def takes_too_much(*_, **__):
        raise MemoryError

    monkeypatch.setattr(main.cli, "main", takes_too_much)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: the memory of this machine") and ended.value.code == 1


def test_an_edited_prediction_is_found_by_check_and_told_by_show(solved):
    check = rlplan("check", solved / "plan.yaml", "--json")
    assert "predictions-edited" not in check.stdout
    text = (solved / "plan.yaml").read_text()
    lines = [line for line in text.splitlines() if line.startswith("  seconds_per_sample: ")]
    (solved / "plan.yaml").write_text(text.replace(lines[0], "  seconds_per_sample: 0.000001"))
    found = json.loads(rlplan("check", solved / "plan.yaml", "--json").stdout)["files"][0]["findings"]
    assert "predictions-edited" in {finding["rule"] for finding in found}
    assert "its predictions were edited" in rlplan("show", solved / "plan.yaml").stdout


def test_a_pool_of_more_accelerators_than_are_simulated_is_refused_at_its_line(solved):
    line = edit(solved / "cluster.yaml", "nodes: 1", "nodes: 1000000")
    result = rlplan("solve", solved, *NEW, solved / "new.yaml")
    refused(result, f"cluster.yaml:{line}: pools.main.nodes: a pool of 2,000,000 accelerators", "at most 65536 nodes")


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"reward": "good"}, "reward of a sample is 'good', which is no number"),
        ({"tokens": 99_999_999_999}, "tokens of a sample is 99999999999, and at most 10000000 is believed"),
        ({"draw": 10**12}, "draw of a sample is 1000000000000"),
        (None, "not a trace event"),
    ],
)
def test_a_runs_trace_with_a_value_that_no_run_writes_is_refused_by_report_and_tune(edits, said, solved):
    row = {
        "event": "sample", "t_s": 1.0, "step": 1, "prompt": "a", "epoch": 0, "draw": 0, "sample": 0, "tokens": 5,
        "prompt_tokens": 3, "truncated": False, "reward": 1.0, "fate": "trained",
    }  # fmt: skip
    line = "[" * 200_000 if edits is None else json.dumps(row | edits)
    (solved / "run").mkdir()
    (solved / "run" / "plan.yaml").write_bytes((solved / "plan.yaml").read_bytes())
    (solved / "run" / "trace.jsonl").write_text(line + "\n")
    for command in ("report", "tune"):
        refused(rlplan(command, solved / "run"), "trace.jsonl", said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    exchange: ", "    exchnge: ", "train_law.factors: lacks exchange; it has compute, "),
        ("{activations: ", "{activity: ", "train_law.memory_factors: lacks activations"),
        ("  model: Qwen2.5-7B", "  model: Qwen9", "train_law.model: 'Qwen9' is not known; it is one of "),
        ("  accelerator: H800", "  accelerator: H8000", "train_law.accelerator: 'H8000' is not known"),
    ],
)
def test_a_law_of_training_that_is_not_whole_is_refused_at_its_line(old, new, said, solved):
    gpus(solved, name="H800")
    assert rlplan("profile", solved, "--shipped", "Qwen2.5-7B", "--out", solved / "law.yaml").returncode == 0
    edit(solved / "law.yaml", old, new)
    result = rlplan("solve", solved, "--profile", solved / "law.yaml")
    refused(result, said)
    assert re.search(r"law\.yaml:\d+: train_law", result.stderr)


def test_a_file_whose_name_has_a_line_break_is_told_in_one_line(solved):
    refused(rlplan("show", solved / "a\nb.yaml"), "a\\nb.yaml: no such file")


@pytest.mark.parametrize("target", ["n" * 300, "/proc/x", "{at}/job.yaml"])
def test_an_example_is_not_written_where_it_cannot_be(target, solved):
    refused(rlplan("init", target.format(at=solved)))
