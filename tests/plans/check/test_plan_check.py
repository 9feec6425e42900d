"""A plan that does not fit its inputs, its cluster, its job or its model is refused at its line before a run."""

import pytest

from rlplan.plans.check.plan_check import changed_inputs, check_plan, model_of_plan, open_plan
from rlplan.plans.facts.digest import solver_read
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import loads, sha256_file

from ..conftest import GROUPS


def refused(folder):
    with pytest.raises(InputError) as caught:
        folder.check()
    return caught.value


def plans_line(folder, error):
    assert error.path == str(folder.path("plan.yaml")) and error.line is not None
    return folder.path("plan.yaml").read_text().splitlines()[error.line - 1]


@pytest.mark.parametrize("name", ["cluster", "job", "profile", "lengths"])
def test_an_input_that_changed_or_is_gone_makes_the_plan_stale(folder, name):
    file = folder.path("lengths.jsonl" if name == "lengths" else f"{name}.yaml")
    file.write_text(file.read_text() + "\n")
    error = refused(folder)
    assert plans_line(folder, error).startswith(f"  {name}: ")
    assert f"'{file.name}' has changed" in str(error) and "rlplan solve" in str(error)
    assert sha256_file(file)[:12] in str(error)
    file.unlink()
    error = refused(folder)
    assert f"no such file: '{file.name}'" in str(error) and f"path: {file.name}" in plans_line(folder, error)
    file.mkdir()
    assert f"no such file: '{file.name}'" in str(refused(folder))


def test_all_misfits_are_told_each_at_its_line(folder):
    lines = [folder.edit("plan.yaml", "cutoff_tokens: 288", "cutoff_tokens: 1024")]
    lines.append(folder.edit("plan.yaml", "engines: 1, tp: 2", "engines: 1, tp: 3"))
    error = refused(folder)
    assert [each.line for each in error.each()] == [lines[0], lines[1], lines[1]]
    assert "job.rounds.long.rollout.tp: 3 does not divide the model's 4 attention heads" in error.each()[1].message


def test_only_a_change_that_the_solver_reads_makes_the_plan_stale(folder):
    names = ("cluster.yaml", "job.yaml", "profile.yaml")
    digests = solver_read(*map(folder.path, names)).model_dump()
    folder.change("plan.yaml", {"inputs.solver_read": digests})
    job, cluster = folder.path("job.yaml"), folder.path("cluster.yaml")
    texts = job.read_text(), cluster.read_text()
    job.write_text(
        texts[0].replace("learning_rate: 1.0e-3", "learning_rate: 2.0e-3 # faster").replace("retries: 2", "retries: 3")
    )
    cluster.write_text(texts[1].replace("name: laptop", "name: desk").replace("    cores", "    slots: 2\n    cores"))
    folder.path("profile.yaml").write_text("note: measured at night\nprofile: 1\n")
    with pytest.warns(UserWarning, match="not in anything that the solver reads; the plan is still valid") as told:
        folder.check()
    assert [str(warning.message).split("'")[1] for warning in told] == ["cluster.yaml", "job.yaml", "profile.yaml"]
    for file, text in (
        (job, texts[0].replace("deadline_s: 2.0", "deadline_s: 2.5")),
        (cluster, texts[1] + "nonsense\n"),
    ):
        file.write_text(text)
        assert f"'{file.name}' has changed" in str(refused(folder))


def test_a_sound_plan_is_opened_with_all_that_it_names(folder):
    opened = open_plan(folder.path("plan.yaml"))
    assert (opened.job.name, opened.cluster.name, opened.plan.job.name) == ("keyhunt", "laptop", "keyhunt")
    files = opened.job_path, opened.profile_path, opened.lengths_path, opened.paths.data
    assert [file.name for file in files] == ["job.yaml", "profile.yaml", "lengths.jsonl", "data.jsonl"]
    assert {file.parent for file in files} == {folder.root} and opened.model.kv_heads == 2
    assert model_of_plan(opened.plan, folder.path("plan.yaml")) == opened.model
    folder.path("job.yaml").write_text("nonsense")
    assert model_of_plan(opened.plan, folder.path("plan.yaml")) is None


def test_tp_must_go_with_the_key_value_heads_of_a_known_model(folder):
    plan, job = load_plan(folder.path("plan.yaml")), load_job(folder.path("job.yaml"))
    cluster = load_cluster(folder.path("cluster.yaml"))

    def check(kv_heads):
        model = ModelShape("qwen2", 6, kv_heads, vocab=None, intermediate=None, experts=0)
        check_plan(plan, folder.path("plan.yaml"), cluster, job, model)

    for kv_heads in (1, 2, 6):
        check(kv_heads)
    with pytest.raises(InputError, match=r"2 neither divides the model's 3 key-value heads nor .*; write 1$"):
        check(3)
    folder.change("cluster.yaml", {"pools.main.accelerators.per_node": 3, "pools.main.cores": 3})
    folder.edit("plan.yaml", "engines: 1, tp: 2", "engines: 1, tp: 3")
    folder.edit("job.yaml", "path: model,", "path: owner/model,")
    folder.check()  # nothing is known of a model on the hub


def test_a_plan_without_deferred_prompts_has_no_long_round(folder):
    long = {"job.rounds.long": None, "predicted.rounds.long": None, "job.rounds.short.cutoff_tokens": None}
    sync = {**long, "job.bias.mode": "sync", "job.rounds.short.issue.prompts": 16}
    folder.change("plan.yaml", sync)
    folder.check()
    # A race over samples alone defers none either.
    folder.change("plan.yaml", {"job.bias.mode": "race", "job.rounds.short.issue.samples": 10})
    folder.check()
    folder.change(
        "plan.yaml", {"predicted.rounds.long": load_plan(folder.path("plan.yaml")).predicted.rounds.short.model_dump()}
    )
    with pytest.raises(InputError, match="must both be null"):
        load_plan(folder.path("plan.yaml"))


def test_changed_or_missing_files_of_groups_are_named(tmp_path):
    plan = loads(
        GROUPS.replace("sources: {}", "sources: {big: {path: big.yaml, sha256: " + "c" * 64 + "}}"), GroupsPlan
    )
    (tmp_path / "workload.yaml").write_text("other")
    assert changed_inputs(plan, tmp_path / "groups.yaml") == ["workload.yaml", "cluster.yaml", "big.yaml"]
