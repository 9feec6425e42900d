"""Seeded faults, one or more for each rule: each is found by its name, and nothing else is found with it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rlplan.cli.shared.findings import memory_rows
from rlplan.plans.check.rules import RULES
from rlplan.plans.schema.site_rules import SITE_RULES_NAME
from rlplan.plans.yaml.errors import InputError

from .conftest import run
from .edits import GONE, check, edit, resign, rules

KIND, LONG = "job.rounds.short", "job.rounds.long"
PREDICTED = "predicted.rounds.short"
MEMBER = "groups.g1.jobs.big"
PLAN, JOB, CLUSTER, PROFILE = "plan.yaml", "job.yaml", "cluster.yaml", "profile.yaml"
WORKLOAD = "workload.yaml"


JUDGE = {"kind": "judge", "prompt": "{response}", "scale": [0, 10], "deadline_s": 9.0}

FEWER: dict[str, Any] = {"rollout.engines": 1, "train.dp": 1, "train.tp": 1, "train.pp": 1}


def more(value: Any) -> Any:
    return value * 2


# rule, which plan, {file: {dotted key: new value}}, rules that must be found beside it. Digests are then made to fit.
FAULTS: list[tuple[str, str, dict[str, dict[str, Any]], set[str]]] = [
    # schema
    ("wrong-document", "laptop", {PLAN: {"rlplan": GONE}}, set()),
    ("unknown-key", "laptop", {PLAN: {"job.fast": 1}}, set()),
    ("unknown-key", "laptop", {PLAN: {"job.reward.deadline_ms": 2000, "job.reward.deadline_s": GONE}}, set()),
    ("missing-key", "laptop", {PLAN: {"solver.gap": GONE}}, set()),
    ("wrong-type", "laptop", {PLAN: {f"{KIND}.rollout.engines": "two"}}, set()),
    ("out-of-range", "laptop", {PLAN: {f"{KIND}.rollout.engines": 0}}, set()),
    ("wrong-choice", "laptop", {PLAN: {"job.bias.mode": "exakt"}}, set()),
    ("wrong-form", "laptop", {PLAN: {"volatile.rlplan": "one"}}, set()),
    ("wrong-length", "laptop", {PLAN: {"predicted.lengths_tokens": [1, 2]}}, set()),
    ("contradiction", "laptop", {PLAN: {"inputs.job.path": "/job.yaml"}}, set()),
    ("mode-contradiction", "laptop", {PLAN: {f"{KIND}.cutoff_tokens": None}}, set()),
    ("hand-over-contradiction", "laptop", {PLAN: {f"{LONG}.hand_over": {"engines": 2, "at_finished": 0.5}}}, set()),
    ("tail-contradiction", "laptop", {PLAN: {f"{LONG}.tail": {"engines": 2, "tp": 2, "at_finished": 0.5}}}, set()),
    ("job-in-two-groups", "groups", {PLAN: {"groups": lambda g: {**g, "g9": g["g1"]}}}, set()),
    ("units-of-wrong-pool", "groups", {PLAN: {f"{MEMBER}.train.units": [0]}}, set()),
    ("residency", "groups", {PLAN: {"groups.g1.nodes.0.resident_bytes": 9e15}}, set()),
    ("unknown-member", "groups", {PLAN: {"groups.g1.timeline.spans.0.job": "nobody"}}, set()),
    # inputs
    ("input-missing", "laptop", {PLAN: {"inputs.lengths.path": "nowhere.jsonl"}}, set()),
    ("input-unreadable", "laptop", {CLUSTER: {"pools.main.nodes": "one"}}, set()),
    ("input-unreadable", "laptop", {PLAN: {"inputs.job.path": "cluster.yaml"}}, set()),
    ("input-changed", "gpus", {PLAN: {"inputs.rewards.sha256": "b" * 64}}, set()),
    ("input-changed", "gpus", {PLAN: {"inputs.rewards.library": "chess"}}, set()),
    ("rewards-assumed", "gpus", {JOB: {"reward.kind": "code"}, PLAN: {"inputs.rewards": GONE}}, set()),
    ("provenance-differs", "laptop", {PLAN: {"inputs.profile.provenance": "derived"}}, set()),
    ("profile-of-other-job", "laptop", {PROFILE: {"job": "other"}}, set()),
    ("profile-of-other-machine", "laptop", {CLUSTER: {"pools.main.accelerators.name": "other core"}}, set()),
    ("profile-of-other-model", "gpus", {JOB: {"model.path": "meta-llama/Llama-3.1-70B-Instruct"}}, set()),
    ("profile-of-earlier-job", "laptop", {JOB: {"rollout.temperature": 0.5}}, set()),
    # physics
    ("wrong-job", "laptop", {PLAN: {"job.name": "other"}}, set()),
    ("wrong-step-size", "laptop", {JOB: {"rollout.prompts_per_step": 2}}, {"profile-of-earlier-job"}),
    ("too-few-prompts", "laptop", {PLAN: {f"{KIND}.issue.prompts": 62}}, {"over-issue-beyond-search"}),
    ("cutoff-beyond-cap", "laptop", {PLAN: {f"{KIND}.cutoff_tokens": 64}}, set()),
    ("loss-divisor", "laptop", {PLAN: {"job.loss.samples": 1.5}}, set()),
    ("heads-not-divided", "laptop", {PLAN: {f"{KIND}.train.tp": 2}}, {"update-unmeasured"}),
    ("unknown-pool", "laptop", {PLAN: {f"{KIND}.rollout.pool": "gpus", f"{LONG}.rollout.pool": "gpus"}}, set()),
    ("same-pool", "laptop", {PLAN: {"job.placement": {"train_pool": "main"}}}, set()),
    ("pools-of-two-kinds", "laptop", {
        CLUSTER: {"pools": lambda pools: {**pools, "gpus": {
            **pools["main"],
            "accelerators": {"kind": "cuda", "name": "H100", "per_node": 8, "memory_bytes": 80_000_000_000}}}},
        PLAN: {"job.placement": {"train_pool": "gpus"}},
    }, set()),
    ("unknown-pool", "laptop", {PLAN: {"job.placement": {"train_pool": "learn"}}}, set()),
    ("profile-of-other-machine", "laptop", {
        CLUSTER: {"pools": lambda pools: {**pools, "learn": {
            **pools["main"], "accelerators": {**pools["main"]["accelerators"], "name": "other core"}}}},
        PLAN: {"job.placement": {"train_pool": "learn"}, "predicted.nodes": 2, "predicted.train_nodes": 1},
    }, {"price-does-not-add-up"}),
    ("nodes-do-not-add-up", "laptop", {
        CLUSTER: {"pools": lambda pools: {**pools, "learn": pools["main"]}},
        PLAN: {"job.placement": {"train_pool": "learn"}},
    }, set()),
    ("too-many-trainers", "laptop", {
        CLUSTER: {"pools": lambda pools: {**pools, "learn": {
            **pools["main"], "accelerators": {**pools["main"]["accelerators"], "per_node": 1}}}},
        PLAN: {"job.placement": {"train_pool": "learn"}, f"{KIND}.train.dp": 2, "predicted.nodes": 3,
               "predicted.train_nodes": 2},
    }, {"update-unmeasured", "price-does-not-add-up"}),
    ("engine-wider-than-node", "gpus", {PLAN: {f"{KIND}.rollout.tp": 16}},
        {"layout-unmeasured", "heads-not-divided", "nodes-do-not-add-up", "not-in-search"}),
    ("too-many-engines", "gpus", {PLAN: {f"{KIND}.rollout.engines": more, f"{KIND}.rollout.tp": 2}},
        {"nodes-do-not-add-up"}),
    ("too-many-trainers", "laptop", {PLAN: {f"{KIND}.train.dp": 3}}, {"update-unmeasured", "nodes-do-not-add-up"}),
    ("rewards-differ", "laptop", {PLAN: {"job.reward.further": {"shape": {"workers": 1, "deadline_s": 1.0}}}}, set()),
    ("judge-without-room", "laptop", {PLAN: {"job.reward.judge": {"place": "own", "instances": 1}}},
        {"judge-unpriced", "rewards-differ"}),
    ("judge-unpriced", "laptop", {PLAN: {"job.reward.judge": {"place": "beside", "instances": 1}}}, {"rewards-differ"}),
    ("micro-batch-too-small", "laptop", {PLAN: {f"{KIND}.train.micro_batch_tokens": 64}}, {"update-unmeasured"}),
    ("train-layout", "gpus", {PLAN: {f"{LONG}.train.pp": 3, f"{LONG}.train.dp": 1}}, set()),
    ("too-many-reward-workers", "laptop", {PLAN: {"job.reward.workers": 3}}, set()),
    ("deadline-too-short", "laptop", {PLAN: {"job.reward.deadline_s": 1e-6}}, set()),
    ("deadline-too-short", "gpus", {PLAN: {"job.reward.deadline_s": 0.001}}, set()),
    ("deadline-too-short", "laptop", {
        JOB: {"reward": lambda one: [one, {"kind": "code", "deadline_s": 9.0}]},
        PLAN: {"job.reward.further": {"code": {"workers": 1, "deadline_s": 0.01}}},
    }, {"profile-of-earlier-job"}),
    ("judge-unfit", "laptop", {
        JOB: {"reward": lambda one: [one, {**JUDGE, "model": "model"}]},
        PROFILE: {"judge": {"per_sample_s": 0.1, "per_token_s": 0.0, "beside_factor": 1.0, "rollout_factor": 1.0}},
        PLAN: {"job.reward.judge": {"place": "beside", "instances": 1}},
        "model/config.json": {"max_position_embeddings": 10},
    }, {"profile-of-earlier-job"}),
    ("pool-too-large", "laptop", {CLUSTER: {"pools.main.nodes": 200_000}}, set()),
    ("pools-differ", "laptop", {
        CLUSTER: {"pools": lambda pools: {**pools, "other": pools["main"]}}, PLAN: {f"{LONG}.rollout.pool": "other"}
    }, set()),
    ("layout-unmeasured", "laptop", {PLAN: {f"{LONG}.rollout.engines": 1}}, set()),
    ("update-unmeasured", "laptop", {PLAN: {f"{KIND}.train.micro_batch_tokens": 256}}, set()),
    ("batch-unmeasured", "laptop", {PLAN: {f"{KIND}.rollout.max_num_seqs": 17}}, set()),
    ("drafts-unpriced", "laptop", {PLAN: {f"{LONG}.rollout.drafts": {"tokens": 3, "up_to_sequences": 4}}}, set()),
    ("kv-below-longest", "laptop", {PROFILE: {"rollout.0.kv_capacity_tokens": 71}}, {"*"}),
    ("engine-memory", "laptop", {CLUSTER: {"pools.main.accelerators.memory_bytes": 50_000_000}}, set()),
    ("engine-memory", "gpus", {CLUSTER: {"pools.main.accelerators.memory_bytes": 40_000_000_000}},
        {"train-memory"}),
    ("kv-preempts", "laptop", {PLAN: {f"{PREDICTED}.memory.kv": {"needed_bytes": 2e9, "capacity_bytes": 1e9}}}, set()),
    ("train-memory", "laptop", {
        PLAN: {f"{PREDICTED}.memory.train": {"needed_bytes": 2e9, "capacity_bytes": 1e9}}
    }, set()),
    ("train-memory", "gpus", {
        PLAN: {f"{LONG}.train": lambda t: {**t, "dp": 16, "tp": 1, "pp": 1, "cp": 1,
                                          "micro_batch_tokens": 262144, "recompute": "none"}}
    }, set()),
    ("host-memory", "laptop", {
        CLUSTER: {"pools.main.host_memory_bytes": 5_000_000_000}, PROFILE: {"machine.host_memory_bytes": 5_000_000_000}
    }, set()),
    ("kv-preempts", "gpus", {PROFILE: {f"rollout.{i}.kv_capacity_tokens": 10_000 for i in range(2)}},
        {"capacity-contradicts-inputs"}),
    ("capacity-contradicts-inputs", "laptop", {
        PLAN: {f"{PREDICTED}.memory.kv.capacity_bytes": more, "predicted.host_memory.capacity_bytes": more}
    }, set()),
    ("accelerator-unlike-name", "gpus", {CLUSTER: {"pools.main.accelerators.memory_bytes": 640_000_000_000}}, set()),
    ("accelerator-unlike-name", "groups", {CLUSTER: {"pools.roll.accelerators.memory_bytes": 768_000_000_000}}, set()),
    ("slo-missed", "laptop", {JOB: {"slo": {"step_p95_s": 1e-3}}}, set()),
    # predictions
    ("price-does-not-add-up", "laptop", {CLUSTER: {"pools.main.usd_per_node_hour": more}}, set()),
    ("nodes-do-not-add-up", "laptop", {PLAN: {"predicted.nodes": 2}}, {"price-does-not-add-up"}),
    ("bias-over-budget", "laptop", {PLAN: {"predicted.length_ratio": 0.7}}, set()),
    ("gap-contradicts-bound", "laptop", {PLAN: {"solver.gap": 0.5}}, set()),
    ("lengths-beyond-cap", "laptop", {PLAN: {"predicted.lengths_tokens.20": 65}}, set()),
    ("not-in-search", "gpus", {JOB: {"search.tp": [8]}}, set()),
    ("over-issue-beyond-search", "gpus", {JOB: {"search.max_over_issue": 1.2}}, set()),
    ("thin-trace", "laptop", {PLAN: {"predicted.length_basis.prompts": 19}}, set()),
    ("thin-trace", "laptop", {PLAN: {
        "predicted.length_basis.longest_simulated_tokens": 64, "predicted.length_basis.longest_seen_tokens": 9,
        "predicted.length_basis.step_share": 0.2,
    }}, set()),
    # groups
    ("too-many-nodes", "groups", {PLAN: {"groups.g1.nodes": lambda nodes: [*nodes, nodes[-1], nodes[-1]]}},
        {"price-does-not-add-up", "state-contradicts-jobs"}),
    ("unknown-pool", "groups", {CLUSTER: {"pools": lambda p: {"roll": p["roll"], "other": p["train"]}, "links": []}},
        set()),
    ("node-unlike-pool", "groups", {CLUSTER: {"pools.train.slots": 4}}, set()),
    ("state-beyond-memory", "groups", {CLUSTER: {"pools.roll.host_memory_bytes": 1_000_000}}, {"*"}),
    ("state-contradicts-jobs", "groups", {PLAN: {"groups.g1.nodes.0.resident_bytes": 5e10}}, set()),
    ("group-too-large", "groups", {PLAN: {"rules.group_cap": 1}, WORKLOAD: {"rules.group_cap": 1}}, set()),
    ("units-held-twice", "groups", {
        PLAN: {"groups.g1.timeline.spans": lambda spans: [
            *spans, {**spans[0], "job": "small" if spans[0]["job"] == "big" else "big"}
        ]}
    }, {"timeline-contradiction"}),
    ("timeline-contradiction", "groups", {PLAN: {"groups.g1.timeline.spans.0.end_s": 1e7}}, {"units-held-twice"}),
    ("bound-broken", "groups", {PLAN: {f"{MEMBER}.slowdown.keeps": False}}, set()),
    ("bound-changed", "groups", {WORKLOAD: {"jobs.big.slo": 1.9}}, set()),
    ("pace-beyond-bound", "groups", {PLAN: {f"{MEMBER}.pace_s": more}}, set()),
    ("way-changed", "groups", {PLAN: {f"{MEMBER}.rollout.way": 7}}, set()),
    ("way-changed", "groups", {WORKLOAD: {"jobs.small.phases.train.mean_s": 50.0}}, set()),
    ("job-missing", "groups", {WORKLOAD: {"jobs": lambda jobs: {**jobs, "third": jobs["big"]}}}, set()),
    ("job-unknown", "groups", {WORKLOAD: {"jobs.small": GONE}}, set()),
    ("rules-changed", "groups", {WORKLOAD: {"rules.group_cap": 3}}, set()),
    ("workload-unsolvable", "groups", {WORKLOAD: {"jobs.big.model": "nameless"}}, set()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "which", "edits", "beside"), FAULTS, ids=[f"{f[0]}-{i}" for i, f in enumerate(FAULTS)]
)
def test_a_seeded_fault_is_found_by_its_name(rule, which, edits, beside, solved):
    folder = solved(which)
    for file, changes in edits.items():
        edit(folder / file, changes)
    resign(folder)
    report = check(folder / PLAN)
    found = rules(report)
    assert rule in found, report.findings
    assert found == {rule} | beside or "*" in beside, [f.text for f in report.findings]
    assert report.bad_input == (RULES[rule].family == "schema")
    lines = (folder / PLAN).read_text().count("\n")
    assert all(f.line is not None and 1 <= f.line <= lines for f in report.findings)


# What is not left after the digests were made to fit: rule, plan, edits.
UNSIGNED: list[tuple[str, str, dict[str, dict[str, Any]]]] = [
    ("input-changed", "laptop", {JOB: {"slo": {"step_p95_s": 1000.0}}}),
    ("input-changed", "groups", {CLUSTER: {"name": "other"}}),
    ("decisions-edited", "laptop", {PLAN: {f"{KIND}.rollout.max_num_seqs": 3}}),
    ("decisions-edited", "groups", {PLAN: {f"{MEMBER}.tail_from": None, f"{MEMBER}.tail_units": None,
                                           "groups.g1.jobs.small.rollout.resume_s": 3.0}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.error.costs": 0.001}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.step_s.p95": 1e-9}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.lengths_tokens.20": 1}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.phases_s.rollout": more}}),
    ("predictions-edited", "laptop", {PLAN: {f"{PREDICTED}.step_s.mean": more}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.baseline.seconds_per_sample": lambda s: s * 1.001}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.rounds.long.share": 0.9}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.front.0.chosen": False}}),
    ("predictions-edited", "laptop", {PLAN: {f"{PREDICTED}.tail_s": 99.0}}),
    ("predictions-edited", "groups", {PLAN: {"predicted.plan.slo_attained": 0.5}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted.usd_per_1k_samples": more}}),
    ("predictions-edited", "laptop", {PLAN: {"predicted_sha256": GONE}}),
    ("predictions-edited", "groups", {PLAN: {"predicted.solo_d.usd_per_hour": more}}),
    ("predictions-edited", "groups", {PLAN: {f"{MEMBER}.slowdown.p95": lambda p95: p95 * 1.0001}}),
    ("other-version", "laptop", {PLAN: {"volatile.rlplan": "7.0.0"}}),
    ("other-version", "groups", {PLAN: {"volatile.rlplan": "0.0.1"}}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "which", "edits"), UNSIGNED)
def test_a_plan_that_is_not_what_was_solved_is_found_by_name(rule, which, edits, solved):
    folder = solved(which)
    for file, changes in edits.items():
        edit(folder / file, changes)
    assert rules(check(folder / PLAN)) == {rule}


# rule, plan, the policy's text
POLICIES = [
    ("policy-usd-per-hour", "laptop", "max_usd_per_hour: 0.05"),
    ("policy-usd-per-hour", "groups", "max_usd_per_hour: 0.05"),
    ("policy-usd-per-samples", "laptop", "max_usd_per_1k_samples: 1.0e-9"),
    ("policy-mode", "laptop", "forbidden_modes: [exact]"),
    ("policy-step-p95", "laptop", "max_step_p95_s: 0.001"),
    ("policy-slo-required", "laptop", "require_slo: true"),
    ("policy-provenance", "gpus", "allowed_provenance: [measured]"),
    ("policy-assumed", "gpus", "refuse_assumed: true"),
    ("policy-memory-headroom", "groups", "min_headroom: 0.999"),
    ("policy-slowdown", "groups", "max_slowdown: 1.001"),
    ("policy-nodes", "laptop", "max_nodes: {main: 0}"),
    ("policy-nodes", "groups", "max_nodes: {roll: 0}"),
    ("policy-unknown-pool", "laptop", "max_nodes: {mian: 4}"),
    ("profile-old", "laptop", "max_profile_age_days: 3"),
    ("profile-undated", "gpus", "max_profile_age_days: 3"),
]


@pytest.mark.parametrize(("rule", "which", "key"), POLICIES)
def test_a_breach_of_policy_is_found_by_name_and_names_both_places(rule, which, key, solved):
    folder = solved(which)
    (folder / SITE_RULES_NAME).write_text(f"# ours\nrlplan_policy: 1\n{key}\n")
    report = check(folder / PLAN)
    assert rules(report) == {rule}
    for finding in report.findings:
        assert f"{SITE_RULES_NAME}:3" in finding.text and key.split(":")[0] in finding.text and finding.line


# rule, plan, the policy's text, edits of the plan
POLICIES_ON_EDITS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("policy-bias", "laptop", "max_bias: 0.1", {"job.bias.budget": 0.4}),
    ("policy-gap", "groups", "max_gap: 0.01", {"solver.gap": None}),
    ("policy-error", "laptop", "max_error: 0.1", {"predicted.error.costs": 0.4}),
    ("policy-job-files", "laptop", "require_job_files: true", {}),
]


@pytest.mark.parametrize(("rule", "which", "key", "edits"), POLICIES_ON_EDITS)
def test_a_breach_that_no_solved_plan_has_here_is_found_too(rule, which, key, edits, solved):
    folder = solved(which)
    if not edits:
        (folder / "data.jsonl").unlink()
    edit(folder / PLAN, edits)
    resign(folder)
    assert rules(check(folder / PLAN)) == set()
    (folder / SITE_RULES_NAME).write_text(f"rlplan_policy: 1\n{key}\n")
    assert rules(check(folder / PLAN)) == {rule}


def test_fewer_bounds_kept_than_a_policy_wants_and_as_many_as_it_wants(solved):
    folder = solved("groups")
    edit(folder / PLAN, {f"{MEMBER}.slowdown.keeps": False, "predicted.plan.slo_attained": 0.5})
    resign(folder)
    assert rules(check(folder / PLAN)) == {"bound-broken"}
    (folder / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmin_slo_attained: 0.9\n")
    assert rules(check(folder / PLAN)) == {"policy-bounds-kept"}
    (folder / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmin_slo_attained: 0.4\n")
    assert rules(check(folder / PLAN)) == set()


def test_an_input_that_changed_in_nothing_that_the_solver_reads_is_a_note_and_no_finding(solved):
    folder = solved("laptop")
    edit(folder / JOB, {"algorithm.learning_rate": 0.002})
    edit(folder / CLUSTER, {"name": "renamed"})
    edit(folder / PROFILE, {"note": "read twice"})
    report = check(folder / PLAN)
    assert rules(report) == set()
    assert [note.split("'")[1] for note in report.notes] == [CLUSTER, JOB, PROFILE]
    assert all("not in anything that the solver reads" in note for note in report.notes)


def test_a_policy_may_allow_edits_and_other_versions(solved):
    folder = solved("laptop")
    edit(folder / PLAN, {f"{KIND}.rollout.max_num_seqs": 3, "volatile.rlplan": "7.0.0"})
    assert rules(check(folder / PLAN)) == {"decisions-edited", "other-version"}
    (folder / SITE_RULES_NAME).write_text("rlplan_policy: 1\nallow_edited: true\nallow_other_versions: true\n")
    assert rules(check(folder / PLAN)) == set()


def test_what_an_edit_makes_of_the_figures_is_told_only_where_the_edit_is_not(solved):
    folder = solved("gpus")
    edit(folder / PLAN, {f"{kind}.{part}": value for kind in (KIND, LONG) for part, value in FEWER.items()})
    before = rules(check(folder / PLAN))
    assert "decisions-edited" in before and "nodes-do-not-add-up" not in before
    (folder / SITE_RULES_NAME).write_text("rlplan_policy: 1\nallow_edited: true\n")
    assert rules(check(folder / PLAN)) == before - {"decisions-edited"} | {"nodes-do-not-add-up"}


def test_an_age_on_the_command_line_goes_before_the_policys_and_asks_a_date_too(solved):
    folder = solved("laptop")
    assert rules(check(folder / PLAN, max_age_days=9)) == {"profile-old"}
    (folder / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmax_profile_age_days: 3\n")
    assert rules(check(folder / PLAN, max_age_days=11)) == set()
    assert rules(check(solved("gpus") / PLAN, max_age_days=1)) == {"profile-undated"}


@pytest.mark.parametrize("date", ["soon", "", "2026-02-30T00:00:00Z", "2099-01-01T00:00:00Z", "9999-12-31T23:59-14:00"])
def test_a_date_that_is_none_or_still_to_come_passes_no_age(date, solved):
    folder = solved("laptop")
    edit(folder / PROFILE, {"volatile.measured_at": date})
    resign(folder)
    (found,) = check(folder / PLAN, max_age_days=30).findings
    assert found.rule == "profile-undated" and f"'{date}'" in found.message
    assert rules(check(folder / PROFILE, max_age_days=30)) == {"profile-undated"}


def test_an_age_just_beyond_the_limit_is_told_as_more_than_it(solved):
    folder = solved("laptop")
    edit(folder / PROFILE, {"volatile.measured_at": "2026-01-01T23:00:00Z"})
    resign(folder)
    (found,) = check(folder / PLAN, max_age_days=10).findings
    assert "10.1 days ago" in found.message and "allows 10 days" in found.message


@pytest.mark.parametrize("date", ["yesterday", "2099-01-01T00:00:00Z"])
@pytest.mark.parametrize("which", ["laptop", "groups"])
def test_a_time_of_solving_that_is_none_or_still_to_come_is_found(date, which, solved):
    folder = solved(which)
    edit(folder / PLAN, {"volatile.solved_at": date})
    assert rules(check(folder / PLAN)) == {"solved-at-unlikely"}


def test_a_length_trace_that_is_none_is_found_though_its_digest_fits(solved):
    folder = solved("gpus")
    with (folder / "lengths.jsonl").open("a") as trace:
        trace.write("garbage\n")
    resign(folder)
    (found,) = check(folder / PLAN).findings
    assert found.rule == "input-unreadable" and "lengths.jsonl" in found.message and "not valid JSON" in found.message


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (found,) = check(tmp_path / "pipe.yaml").findings
    assert found.rule == "unreadable" and found.remedy == "a file is needed"


def test_a_profile_without_any_measured_batch_is_checked_too(solved):
    folder = solved("laptop")
    edit(folder / PROFILE, {"rollout.0.points": [], "rollout.0.curve_sequences": [], "rollout.0.curve_s": []})
    resign(folder)
    assert "batch-unmeasured" in rules(check(folder / PLAN))


# rule, plan's folder, file, edits
OTHER_DOCUMENTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("input-missing", "laptop", JOB, {"data.path": "nowhere.jsonl"}),
    ("heads-not-divided", "laptop", JOB, {"search.tp": [2]}),
    ("too-few-prompts", "laptop", JOB, {"rollout.prompts_per_step": 65}),
    ("too-few-prompts", "laptop", JOB, {"data.prompts": 3, "data.path": GONE}),
    ("prompts-miscounted", "laptop", JOB, {"data.prompts": 63}),
    ("missing-key", "laptop", JOB, {"data.path": GONE}),
    ("missing-key", "groups", CLUSTER, {"pools.roll.usd_per_node_hour": GONE}),
    ("input-missing", "laptop", PROFILE, {"lengths.path": "nowhere.jsonl"}),
    ("input-changed", "laptop", PROFILE, {"lengths.sha256": "0" * 64}),
    ("input-missing", "groups", WORKLOAD, {"cluster": "nowhere.yaml"}),
    ("unknown-pool", "groups", WORKLOAD, {"jobs.big.phases.train.pool": "none"}),
    ("does-not-fit-pool", "groups", WORKLOAD, {"jobs.big.phases.train.nodes": 3}),
    ("workload-unsolvable", "groups", WORKLOAD, {"jobs.big.model": "nameless"}),
    ("workload-too-large", "groups", WORKLOAD, {"jobs": lambda jobs: {f"j{i}": jobs["big"] for i in range(9)}}),
    ("out-of-range", "groups", CLUSTER, {"pools.roll.nodes": 0}),
    ("accelerator-unlike-name", "groups", CLUSTER, {"pools.roll.accelerators.kind": "cpu"}),
]


@pytest.mark.parametrize(("rule", "which", "file", "edits"), OTHER_DOCUMENTS)
def test_other_documents_are_checked_too(rule, which, file, edits, solved):
    folder = solved(which)
    edit(folder / file, edits)
    assert rules(check(folder / file)) == {rule}


def test_files_that_are_no_documents_are_found_by_name(solved):
    folder = solved("laptop")
    (folder / "empty.yaml").write_text("")
    (folder / "torn.yaml").write_text((folder / PLAN).read_text().partition("{pool")[0] + "{pool")
    (folder / "twice.yaml").write_text("rlplan: 1\nrlplan: 1\n")
    expected = {"nowhere.yaml": "unreadable", ".": "unreadable", "empty.yaml": "unreadable", "torn.yaml": "not-yaml",
                "twice.yaml": "not-yaml"}  # fmt: skip
    assert {name: rules(check(folder / name)) for name in expected} == {n: {r} for n, r in expected.items()}


def test_every_rule_of_the_catalogue_has_a_seeded_fault():
    seeded = {fault[0] for table in (FAULTS, UNSIGNED, POLICIES, POLICIES_ON_EDITS, OTHER_DOCUMENTS) for fault in table}
    # in tests of their own
    seeded |= {"unreadable", "not-yaml", "policy-bounds-kept", "solved-at-unlikely", "not-executable"}
    assert seeded == set(RULES)


def test_what_the_executor_cannot_run_is_found_at_its_line_if_it_is_asked_for_and_told_else(solved):
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
    assert {finding.key for finding in found} == {
        f"{KIND}.train.pp", f"{LONG}.train.pp", "job.reward.synchronous",
    }  # fmt: skip


def test_of_a_plan_of_groups_is_said_what_is_not_executed_and_no_other_document_is_asked(solved):
    groups = solved("groups")
    assert rules(check(groups / PLAN)) == set() and check(groups / PLAN).not_executable is None
    asked = check(groups / PLAN, for_executor=True)
    assert asked.not_executable == asked.findings != (), "what is a finding is also why it cannot be run"
    assert {finding.rule for finding in asked.findings} == {"not-executable"}
    assert "has no plan of its own to execute" in {finding.message for finding in asked.findings}
    assert all(finding.remedy.endswith("solve again") for finding in asked.findings)
    assert check(groups / CLUSTER, for_executor=True).findings == ()


def test_ranks_that_do_not_share_the_heads_evenly_are_found(solved):
    folder = solved("laptop")
    (folder / "model" / "config.json").write_text('{"num_attention_heads": 4, "num_key_value_heads": 2}')
    for size, key, divides in (("sp", "sp", (2,)), ("tp", "tp", (2, 4))):
        for ranks in (2, 3, 4):
            edit(folder / PLAN, {f"{kind}.train.{size}": ranks for kind in (KIND, LONG)})
            resign(folder)
            report = check(folder / PLAN)
            found = {f.key.split(".")[-1] for f in report.findings if f.rule == "heads-not-divided"}
            assert found == (set() if ranks in divides else {key}), (
                "tensor ranks elsewhere may hold key-value heads twice"
            )
            remedies = {f.remedy for f in report.findings if f.rule == "heads-not-divided"}
            assert remedies == (set() if ranks in divides else {f"write one of 1, {', '.join(map(str, divides))}"})
            assert bool(report.not_executable) == (ranks != 2)
        edit(folder / PLAN, {f"{kind}.train.{size}": 1 for kind in (KIND, LONG)})


def test_all_faults_of_a_plan_are_reported_and_not_only_the_first(solved):
    folder = solved("laptop")
    edit(folder / PLAN, {"job.name": "other", "job.reward.workers": 3, f"{KIND}.rollout.max_num_seqs": 17})
    resign(folder)
    assert rules(check(folder / PLAN)) == {"wrong-job", "too-many-reward-workers", "batch-unmeasured"}
    edit(folder / PLAN, {f"{KIND}.issue.samples": 9, f"{KIND}.cutoff_tokens": None, f"{LONG}.issue.prompts": 9})
    contradictions = [f.key for f in check(folder / PLAN).findings if f.rule == "mode-contradiction"]
    assert len(contradictions) == 3


def test_a_job_in_two_groups_is_told_beside_a_timeline_that_does_not_know_it(solved):
    folder = solved("groups")
    edit(folder / PLAN, {
        "groups": lambda groups: {**groups, "g9": groups["g1"]}, "groups.g1.timeline.spans.0.job": "nobody"
    })  # fmt: skip
    assert rules(check(folder / PLAN)) == {"job-in-two-groups", "unknown-member"}


def test_advice_is_possible_to_follow(solved):
    folder = solved("gpus")
    edit(folder / PLAN, {f"{KIND}.train.tp": 64})
    (found,) = (f for f in check(folder / PLAN).findings if f.rule == "too-many-trainers")
    assert "at most 0" not in found.text and "one trainer alone takes" in found.remedy
    groups = solved("groups")
    edit(groups / PLAN, {"groups": lambda g: {"ga": g["g1"]}})
    assert "write g and a number" in check(groups / PLAN).findings[0].text
    (folder / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmax_usd: 3\n")
    (found,) = check(folder / SITE_RULES_NAME).findings
    assert "max_bias'?" not in found.text
    edit(folder / PLAN, {"predicted.nodes": GONE})
    text = (folder / PLAN).read_text().replace("max_num_seqs: ", "max_num_seqs: 1" + "0" * 401)
    (folder / PLAN).write_text(text)
    assert not any("not inf" in found.text for found in check(folder / PLAN).findings)


@pytest.mark.parametrize(("kind", "deadline_s", "beside"), [("math", 0.001, True), ("code", 0.1, False)])
def test_a_deadline_that_gives_rewards_no_time_is_found_in_the_job_and_refused_by_solve(
    kind, deadline_s, beside, solved
):
    folder = solved("gpus")
    assert rules(check(folder / JOB)) == set()
    edit(folder / JOB, {"reward.kind": kind, "reward.deadline_s": deadline_s})
    with pytest.raises(InputError) as caught:
        run("solve", folder, "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
    line = caught.value.line
    assert line and caught.value.path == str(folder / JOB) and "reward.deadline_s" in str(caught.value)
    if not beside:
        (folder / PROFILE).unlink()  # then the seconds that ship for the kind
    (found,) = check(folder / JOB).findings
    assert (found.rule, found.line) == ("deadline-too-short", line) and f"is {deadline_s:g} s" in found.message
    assert found.text == caught.value.message


def test_what_solve_refuses_of_a_cluster_and_of_a_job_beside_it_is_found_in_the_documents(solved):
    folder = solved("gpus")
    edit(folder / CLUSTER, {"pools.main.nodes": 20_000})
    with pytest.raises(InputError) as caught:
        run("solve", folder, "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
    (found,) = check(folder / CLUSTER).findings
    assert found.rule == "pool-too-large" and found.text == caught.value.message
    edit(folder / CLUSTER, {"pools.main.nodes": 1})
    edit(folder / JOB, {"reward.workers": 5000})
    with pytest.raises(InputError) as caught:
        run("solve", folder, "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
    (found,) = check(folder / JOB).findings
    assert found.rule == "too-many-reward-workers" and found.text == caught.value.message


def test_deadlines_and_workers_of_further_parts_are_found_where_the_job_has_them(solved):
    folder = solved("gpus")
    parts = [
        {"kind": "format", "pattern": ".*", "deadline_s": 1.0},
        {"kind": "math", "deadline_s": 9.0},
        {"kind": "code", "deadline_s": 0.1},
        {"kind": "function", "function": "a.b:c", "deadline_s": 9.0, "workers": 5000},
    ]
    edit(folder / JOB, {"reward": parts})
    text = (folder / JOB).read_text().splitlines()
    found = {finding.rule: finding for finding in check(folder / JOB).findings}
    assert set(found) == {"deadline-too-short", "too-many-reward-workers"}, found
    late, crowded = found["deadline-too-short"], found["too-many-reward-workers"]
    assert late.key == "reward.2.deadline_s" and "deadline_s: 0.1" in text[late.line - 1]
    assert crowded.key == "reward.3.workers" and "5000" in text[crowded.line - 1]
    for location in ("reward.3.workers", "reward.2.deadline_s"):
        with pytest.raises(InputError, match=location) as caught:
            run("solve", folder, "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
        assert caught.value.line
        edit(folder / JOB, {"reward.3.workers": 1})


def test_a_reward_that_teaches_nothing_is_refused(solved):
    folder = solved("laptop")
    edit(folder / JOB, {"reward.weight": 0.0})
    (found,) = check(folder / JOB).findings
    assert found.key == "reward.weight" and "is 0, so that every reward is 0" in found.text
    edit(folder / JOB, {"reward": lambda one: [one, {**one, "name": "again"}]})
    (found,) = check(folder / JOB).findings
    assert found.key == "reward.0.weight" and "as those of all other parts" in found.text
    verdicts = {key: value for key, value in JUDGE.items() if key != "scale"} | {"verdicts": {"good": 1, "bad": 1}}
    edit(folder / JOB, {"reward": {**verdicts, "model": "model"}})
    (found,) = check(folder / JOB).findings
    assert found.key == "reward.verdicts" and "are all worth 1" in found.text


def beside(pools: dict[str, Any], **accelerators: Any) -> dict[str, Any]:
    """The cluster's pools and another like `main` but for what is said of its accelerators."""
    return {**pools, "learn": {**pools["main"], "accelerators": {**pools["main"]["accelerators"], **accelerators}}}


@pytest.mark.parametrize(
    ("rule", "train", "pools"),
    [
        ("unknown-pool", "learn", lambda pools: pools),
        ("same-pool", "main", lambda pools: pools),
        ("pools-of-two-kinds", "learn", lambda pools: beside(pools, kind="cpu", name="EPYC")),
        ("profile-of-other-machine", "learn", lambda pools: beside(pools, name="H20", memory_bytes=96 * 10**9)),
    ],
)
def test_a_pool_that_trainers_cannot_have_is_found_in_the_job_and_refused_by_solve(rule, train, pools, solved):
    folder = solved("gpus")
    edit(folder / CLUSTER, {"pools": pools})
    edit(folder / JOB, {"placement": {"train_pool": train}})
    with pytest.raises(InputError) as caught:
        run("solve", folder, "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
    line = caught.value.line
    assert line and caught.value.path == str(folder / JOB)
    assert "train_pool" in (folder / JOB).read_text().splitlines()[line - 1]
    (found,) = check(folder / JOB).findings
    assert (found.rule, found.line) == (rule, line) and found.text == caught.value.message


def test_what_solve_writes_for_two_pools_has_no_finding_and_keeps_the_policys_limit_of_each(solved):
    folder = solved("gpus")
    edit(folder / CLUSTER, {"pools": beside})
    edit(folder / JOB, {"placement": {"train_pool": "learn"}})
    run("solve", folder, "--mode", "exact", "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
    edit(folder / "new.yaml", {"volatile.solved_at": "2026-01-11T00:00:00Z"})
    assert rules(check(folder / JOB)) == rules(check(folder / "new.yaml")) == set()
    held = memory_rows(folder / "new.yaml")
    assert held is not None and {row["of"] for row in held} == {"engines", "trainers"}
    (folder / SITE_RULES_NAME).write_text("rlplan_policy: 1\nmax_nodes: {main: 8, learn: 0}\n")
    (found,) = check(folder / "new.yaml").findings
    assert found.rule == "policy-nodes" and "of pool 'learn'" in found.message
