"""A plan that does not fit its inputs, its cluster, its job or its model is refused at its line."""

from __future__ import annotations

from typing import Any

import pytest

from rlplan.plans.check.plan_check import check_plan, open_plan
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import InputError


def refused(folder: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        folder.check()
    return caught.value


@pytest.mark.parametrize("name", ["cluster", "job", "profile", "lengths"])
def test_an_input_that_changed_makes_the_plan_stale(folder: Any, name: str) -> None:
    file = folder.path("lengths.jsonl" if name == "lengths" else f"{name}.yaml")
    file.write_text(file.read_text() + "\n")
    error = refused(folder)
    plan = folder.path("plan.yaml").read_text().splitlines()
    assert error.path == str(folder.path("plan.yaml"))
    assert error.line is not None and plan[error.line - 1].startswith(f"  {name}: ")
    assert f"'{file.name}' has changed" in str(error) and "rlplan solve" in str(error)


@pytest.mark.parametrize("name", ["cluster", "job", "profile", "lengths"])
def test_an_input_that_is_missing_is_named_at_the_plans_line(folder: Any, name: str) -> None:
    file = folder.path("lengths.jsonl" if name == "lengths" else f"{name}.yaml")
    file.unlink()
    error = refused(folder)
    assert f"no such file: '{file.name}'" in str(error)
    assert error.line is not None
    assert f"path: {file.name}" in folder.path("plan.yaml").read_text().splitlines()[error.line - 1]


# text in plan.yaml, its replacement, words of the message
PLAN_CASES = {
    "tp does not divide the heads": ("engines: 1, tp: 2", "engines: 1, tp: 3",
        ["does not divide", "4 attention heads", "1, 2, 4"]),
    "more engines than cores": ("engines: 2, tp: 1", "engines: 3, tp: 1", ["need 3 cores", "has 2", "at most 2"]),
    "more engines than cores at tp 2": ("engines: 1, tp: 2", "engines: 2, tp: 2", ["need 4 cores", "at most 1"]),
    "an engine wider than a node": ("engines: 1, tp: 2", "engines: 1, tp: 4",
        ["needs 4 cores in one node", "at most 2"]),
    "no such pool": ("pool: main, engines: 2", "pool: gpus, engines: 2", ["no pool 'gpus'", "main"]),
    "micro-batch below the longest sequence": ("micro_batch_tokens: 4096", "micro_batch_tokens: 1024",
        ["at least 1120"]),
    "more trainers than cores": ("dp: 2", "dp: 3", ["3 trainers need 3 cores", "at most 2"]),
    "cutoff at the cap": ("cutoff_tokens: 288", "cutoff_tokens: 1024", ["write less than 1024"]),
    "a judge of its own where engines leave no room": (
        "deadline_s: 2.0}", "deadline_s: 2.0, judge: {place: own, instances: 1}}",
        ["need 1 accelerators", "leave 0 of pool 'main' free", "write place: beside"]),
    "more judges than engines to stand beside": (
        "deadline_s: 2.0}", "deadline_s: 2.0, judge: {place: beside, instances: 3, tp: 1}}",
        ["need 3 accelerators", "engines have 2", "write at most 2"]),
    "plan of another job": ("  name: keyhunt", "  name: other", ["called 'keyhunt'", "solve again"]),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAN_CASES)
def test_a_plan_that_does_not_fit_is_refused_at_its_line(folder: Any, case: str) -> None:
    old, new, fragments = PLAN_CASES[case]
    line = folder.edit("plan.yaml", old, new)
    error = refused(folder)
    for fragment in fragments:
        assert fragment in str(error)
    assert error.line == line


def test_p_and_n_must_be_the_jobs(folder: Any) -> None:
    folder.edit("job.yaml", "prompts_per_step: 16", "prompts_per_step: 12")
    assert "is 16 but the job has 12" in str(refused(folder))


def test_tp_must_go_with_the_key_value_heads(folder: Any) -> None:
    plan, job = load_plan(folder.path("plan.yaml")), load_job(folder.path("job.yaml"))
    cluster = load_cluster(folder.path("cluster.yaml"))

    def model(kv_heads: int) -> ModelShape:
        return ModelShape("qwen2", 6, kv_heads, vocab=None, intermediate=None, experts=0)

    for kv_heads in (1, 2, 6):
        check_plan(plan, folder.path("plan.yaml"), cluster, job, model(kv_heads))
    with pytest.raises(InputError, match="3 key-value heads"):
        check_plan(plan, folder.path("plan.yaml"), cluster, job, model(3))


def test_engines_do_not_span_nodes(folder: Any) -> None:
    folder.edit("cluster.yaml", "nodes: 1", "nodes: 3")
    folder.edit("plan.yaml", "engines: 1, tp: 2", "engines: 3, tp: 2")
    folder.check()
    folder.edit("cluster.yaml", "per_node: 2", "per_node: 1")
    assert "needs 2 cores in one node" in str(refused(folder))


def test_a_sound_plan_is_opened_with_all_that_it_names(folder: Any) -> None:
    opened = open_plan(folder.path("plan.yaml"))
    assert (opened.job.name, opened.cluster.name, opened.plan.job.name) == ("keyhunt", "laptop", "keyhunt")
    assert opened.lengths_path == folder.path("lengths.jsonl")
    assert opened.profile_path == folder.path("profile.yaml")
    assert opened.paths.data == folder.path("data.jsonl")


def test_heads_of_a_model_on_the_hub_are_not_checked(folder: Any) -> None:
    folder.edit("cluster.yaml", "per_node: 2", "per_node: 3")
    folder.edit("cluster.yaml", "cores: 2", "cores: 3")
    folder.edit("plan.yaml", "engines: 1, tp: 2", "engines: 1, tp: 3")
    assert "does not divide" in str(refused(folder))
    folder.edit("job.yaml", "path: model,", "path: owner/model,")
    folder.check()


def sync_plan(folder: Any, mode: str, samples: int) -> None:
    plan = folder.path("plan.yaml")
    text = plan.read_text()
    for start, end in (("    long:\n", "  reward: {workers"), ("    long:\n", "  length_ratio")):
        head, rest = text.split(start, 1)
        text = head + "    long: null\n" + rest[rest.index(end) :]
    plan.write_text(text)
    folder.edit("plan.yaml", "{mode: exact, budget", f"{{mode: {mode}, budget")
    folder.edit("plan.yaml", "cutoff_tokens: 288", "cutoff_tokens: null")
    folder.edit("plan.yaml", "{prompts: 20, samples: 8}", f"{{prompts: 16, samples: {samples}}}")


def test_a_synchronous_plan_and_a_race_over_samples_alone_have_no_long_round(folder: Any) -> None:
    sync_plan(folder, "sync", 8)
    folder.check()
    folder.edit("plan.yaml", "{mode: sync", "{mode: race")
    folder.edit("plan.yaml", "{prompts: 16, samples: 8}", "{prompts: 16, samples: 10}")
    folder.check()


def test_a_prediction_for_a_round_that_the_plan_lacks_is_refused(folder: Any) -> None:
    predicted = folder.path("plan.yaml").read_text().split("predicted:")[1]
    sync_plan(folder, "sync", 8)
    plan = folder.path("plan.yaml")
    plan.write_text(plan.read_text().split("predicted:")[0] + "predicted:" + predicted)
    with pytest.raises(InputError, match="must both be null"):
        load_plan(plan)
