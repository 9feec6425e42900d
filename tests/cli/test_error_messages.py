"""Error messages as a table: what somebody gets wrong, and the one line that says what is wrong and what to do.

`{at}` is the folder. The whole line is compared, so that a change of wording is a change that somebody looked at.
"""

from __future__ import annotations

import pytest

from .command_line import rlplan
from .solved_folder import edit

TABLE = [
    # command line, file edited, old text, new text, message
    (
        "solve {at}",
        "job.yaml",
        "deadline_s: 2.0",
        "deadline: 2.0",
        "error: {at}/job.yaml:5: unknown key 'reward.deadline': wrong unit; it is 'deadline_s', "
        "in seconds: write 'deadline_s: 2'",
    ),
    (
        "solve {at}",
        "job.yaml",
        "kind: math",
        "kind: maths",
        "error: {at}/job.yaml:5: reward.kind: must be 'function', 'math', 'code', 'format', 'length', "
        "'overlong' or 'judge', not 'maths'; did you mean 'math'?",
    ),
    (
        "solve {at}",
        "job.yaml",
        "tp: [1]",
        "tp: [2, 1]",
        "error: {at}/job.yaml:8: search.tp: must be strictly ascending; write [1, 2]",
    ),
    (
        "solve {at}",
        "job.yaml",
        "samples_per_prompt: 2",
        "samples_per_prompt: 1",
        "error: {at}/job.yaml:6: rollout.samples_per_prompt: must be at least 2, not 1 (n: "
        "samples per prompt that are trained)",
    ),
    (
        "solve {at}",
        "job.yaml",
        "path: data.jsonl",
        "path: dta.jsonl",
        "error: {at}/job.yaml:4: data.path: no such file: 'dta.jsonl'; paths are relative to this file",
    ),
    (
        "solve {at}",
        "job.yaml",
        "path: model,",
        "path: modell,",
        "error: {at}/job.yaml:3: model.path: no such folder: 'modell'; paths are relative to "
        "this file, a hub id is 'owner/name'",
    ),
    (
        "solve {at}",
        "job.yaml",
        "micro_batch_tokens: [128]",
        "micro_batch_tokens: [64]",
        "error: {at}/job.yaml:8: search.micro_batch_tokens: the largest micro-batch has 64 "
        "tokens but a sequence may have 72 (max_prompt_tokens + max_response_tokens); add a size "
        "of at least 72",
    ),
    (
        "solve {at}",
        "job.yaml",
        "name: toy",
        "name: other",
        "error: {at}/profile.yaml: is a profile of job 'toy', not 'other'; run rlplan profile",
    ),
    (
        "solve {at}",
        "cluster.yaml",
        "cores: 2",
        "cores: 1",
        "error: {at}/cluster.yaml:6: pools.main.accelerators.per_node: accelerators.per_node is "
        "2 but a node has 1 cores, and for kind cpu an accelerator is a core; write at most 1",
    ),
    (
        "solve {at}",
        "cluster.yaml",
        "per_node: 2,",
        "per_node: 4,",
        "error: {at}/cluster.yaml:6: pools.main.accelerators.per_node: accelerators.per_node is "
        "4 but a node has 2 cores, and for kind cpu an accelerator is a core; write at most 2",
    ),
    (
        "solve {at}",
        "cluster.yaml",
        "memory_bytes: 1000000000}",
        "memory_bytes: 24}",
        "error: {at}/cluster.yaml:6: pools.main.accelerators.memory_bytes: must be at least "
        "1000000 bytes, not 24 (Bytes of memory per accelerator)",
    ),
    (
        "solve {at}",
        "profile.yaml",
        "rlplan_profile: 1",
        "rlplan_profile: 2",
        "error: {at}/profile.yaml:1: rlplan_profile: must be 1, not 2 (Version of this document's shape)",
    ),
    (
        "solve {at}",
        "lengths.jsonl",
        '"tokens": 3,',
        '"tokens": "3",',
        "error: {at}/lengths.jsonl: is not the length trace that the profile names (digest differs); profile again",
    ),
    (
        "solve {at} --bias-budget 2",
        None,
        "",
        "",
        "error: Invalid value for '--bias-budget': 2.0 is not in the range 0<=x<1; see rlplan solve --help",
    ),
    (
        "solve {at} --objective usd_per_unit",
        None,
        "",
        "",
        "error: --objective usd_per_unit is for a workload; for a job it is one of seconds, usd",
    ),
    (
        "solve {at} --out {at}/job.yaml",
        None,
        "",
        "",
        "error: {at}/job.yaml: is an input of this command; choose another name",
    ),
    (
        "solve {at} --out {at}/no/plan.yaml",
        None,
        "",
        "",
        "error: {at}/no/plan.yaml: cannot be written: its folder does not exist",
    ),
    (
        "solve {at}/nowhere",
        None,
        "",
        "",
        "error: {at}/nowhere: no such file; rlplan init --gpus 8x8xH100 --model Qwen2.5-32B FOLDER writes a job and "
        "its cluster to begin with",
    ),
    (
        "show {at}/job.yaml",
        None,
        "",
        "",
        "error: {at}/job.yaml:1: is a job ('rlplan_job'), and a plan ('rlplan') is needed here; pass that one",
    ),
    (
        "show {at}/plan.yaml",
        "plan.yaml",
        "{mode: sync",
        "{mode: synch",
        "error: {at}/plan.yaml:20: job.bias.mode: must be 'sync', 'race', 'defer', 'exact' or "
        "'predict', not 'synch'; did you mean 'sync'?",
    ),
    (
        "show {at}/plan.yaml",
        "plan.yaml",
        "cutoff_tokens: null",
        "cutoff_tokens: 12",
        "error: {at}/plan.yaml:25: job.rounds.short.cutoff_tokens: cutoff_tokens belongs to mode "
        "exact; write null for mode sync",
    ),
    (
        "show {at}/plan.yaml",
        "plan.yaml",
        "long: null\n  reward",
        "long: [\n  reward",
        "error: {at}/plan.yaml:32: not valid YAML: expected ',' or ']', but got '<scalar>'; correct the syntax",
    ),
    (
        "show {at}/plan.yaml --html {at}/no/page.html",
        None,
        "",
        "",
        "error: {at}/no/page.html: cannot be written: its folder does not exist",
    ),
    (
        "simulate {at}/plan.yaml --set plan.job.rounds.short.rollout.engins=1",
        None,
        "",
        "",
        "error: --set plan.job.rounds.short.rollout.engins=1: there is no "
        "plan.job.rounds.short.rollout.engins; did you mean "
        "plan.job.rounds.short.rollout.engines or plan.job.rounds.short.rollout or "
        "plan.job.rounds.short.rollout.prefix?",
    ),
    (
        "simulate {at}/plan.yaml",
        "plan.yaml",
        "path: profile.yaml",
        "path: profil.yaml",
        "error: {at}/profil.yaml: no such file",
    ),
    (
        "execute {at}/plan.yaml --dry-run",
        "plan.yaml",
        "engines: 2,",
        "engines: 3,",
        "error: {at}/plan.yaml:27: job.rounds.short.rollout.engines: 3 engines of tp 1 need 3 "
        "cores, pool 'main' has 2 in 1 node; write at most 2\n"
        "error: {at}/plan.yaml:17: [decisions-edited] decisions_sha256: the decisions were edited after they were "
        "solved, so the predictions are not of these decisions; run rlplan refresh, or solve again, or say "
        "allow_edited: true in a policy\n"
        "error: {at}/plan.yaml:27: [layout-unmeasured] job.rounds.short.rollout: the profile has no layout of 3 "
        "engines with tp 1, it has 2 x tp 1; profile again or take one of these",
    ),
    (
        "execute {at}/plan.yaml --dry-run",
        "job.yaml",
        "learning_rate: 0.001",
        "learning_rate: 0.002",
        "error: {at}/plan.yaml:5: inputs.job: 'job.yaml' has changed since the plan was solved "
        "(sha256 f2276eea3ba0…, the plan has fadc319a200d…); run `rlplan solve` again or restore "
        "the file",
    ),
    (
        "report {at}",
        None,
        "",
        "",
        "error: {at}: holds no run (no trace.jsonl); give the --out of rlplan execute",
    ),
    (
        "report {at}/nowhere",
        None,
        "",
        "",
        "error: {at}/nowhere: no such run folder; give the --out of rlplan execute",
    ),
    (
        "tune {at}",
        None,
        "",
        "",
        "error: {at}: holds no trace.jsonl; give the --out of rlplan execute",
    ),
    (
        "fmt {at}/data.jsonl",
        None,
        "",
        "",
        "error: {at}/data.jsonl: is not an rlplan document: it has none of the keys rlplan_cluster, "
        "rlplan_job, rlplan_profile, rlplan, rlplan_workload, rlplan_groups, rlplan_policy at "
        "its top",
    ),
    (
        "check {at}/nowhere.yaml",
        None,
        "",
        "",
        "{at}/nowhere.yaml: [unreadable] no such file; check the path; it is relative to the current folder\n"
        "1 finding in 1 of 1 file; 1 file could not be read",
    ),
    (
        "check {at}/plan.yaml --policy {at}/nowhere.yaml",
        None,
        "",
        "",
        "error: {at}/nowhere.yaml: no such file; check the path; it is relative to the current folder",
    ),
    (
        "diff {at}/plan.yaml {at}/nowhere.yaml",
        None,
        "",
        "",
        "error: {at}/nowhere.yaml: no such file",
    ),
    (
        "diff {at}/plan.yaml {at}/job.yaml",
        None,
        "",
        "",
        "error: {at}/job.yaml:1: is a job ('rlplan_job'), and a plan ('rlplan') is needed here; pass that one",
    ),
]


def said(command, file, old, new, solved):
    if file is not None:
        path = solved / file
        text = path.read_text()
        assert text.count(old) >= 1, (file, old)
        path.write_text(text.replace(old, new, 1))
    result = rlplan(*(word.format(at=solved) for word in command.split()))
    return result.returncode, (result.stderr or result.stdout).strip().replace(str(solved), "{at}")


@pytest.mark.parametrize(
    ("command", "file", "old", "new", "message"), TABLE, ids=[f"{row[0]} {row[3]}" for row in TABLE]
)
def test_the_message_says_where_what_and_what_to_do(command, file, old, new, message, solved):
    code, line = said(command, file, old, new, solved)
    assert (code, line) == (2, message)


def test_the_faults_of_all_documents_of_a_solve_are_told_at_once_each_on_its_line(solved):
    edit(solved / "job.yaml", "kind: math", "kind: maths")
    edit(solved / "job.yaml", "deadline_s: 2.0", "deadline: 2.0")
    edit(solved / "cluster.yaml", "cores: 2", "cores: 1")
    (solved / "profile.yaml").unlink()
    result = rlplan("solve", solved)
    assert result.returncode == 2
    places = [line.removeprefix(f"error: {solved}/").split(": ")[0] for line in result.stderr.splitlines()]
    assert places == ["job.yaml:5", "job.yaml:5", "cluster.yaml:6", "profile.yaml"]
    assert "more)" not in result.stderr
