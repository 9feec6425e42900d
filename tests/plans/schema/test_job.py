"""What a job's sections, and a plan's, stand for,
and where its files are; faults are in tests/plans/test_bad_input.py."""

import pytest

from rlplan.plans.schema.algorithm import OWN, Algorithm, ImportanceSampling
from rlplan.plans.schema.job import Job, job_paths, load_job, objective_of
from rlplan.plans.schema.levers import RewardJudge, RoundDrafts, RoundHandOver, SearchDrafts
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.schema.reward_spec import RewardList, RewardSpec
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.rounds.timeouts import TimeoutSpec

from ..conftest import JOB
from ..test_bad_input import SEVERAL

DEADLINE, TIMEOUT = "  deadline_s: 2.0\n", "adaptive_timeout: {min_s: 0.5, anchor_factor: 1.5}"


@pytest.mark.parametrize(
    ("name", "aggregation"),
    [("grpo", "seq-mean-token-mean"), ("dr_grpo", "seq-mean-token-sum-norm"), ("rloo", "seq-mean-token-sum-norm")],
)
def test_a_name_alone_sets_what_its_paper_sets(name, aggregation):
    found = Algorithm.model_validate({"name": name, "learning_rate": 1e-6})
    assert (found.loss_aggregation, found.clip_low, found.clip_high) == (aggregation, 0.2, 0.2)
    assert found.dynamic_sampling is found.mask_truncated is False
    assert found.importance_sampling is None and found.overrides() == ()


def test_importance_weights_are_the_default_in_bfloat16_on_gpus_alone():
    def correction(dtype, kind, **keys):
        return Algorithm.model_validate({"name": "gspo", "learning_rate": 1e-6, **keys}).correction(dtype, kind)

    assert correction("bfloat16", "cuda") == ImportanceSampling() == ImportanceSampling(cap=2.0, beyond="truncate")
    assert [correction(*where) for where in (("float32", "cuda"), ("float16", "cuda"), ("bfloat16", "cpu"))] == [
        None
    ] * 3
    assert correction("float32", "cpu", importance_sampling={"cap": 3.0}) == ImportanceSampling(cap=3.0)
    assert correction("bfloat16", "cuda", importance_sampling={"level": "none"}) is None


def test_a_name_sets_the_clip_and_says_whether_the_whole_step_divides():
    def found(name, **keys):
        return Algorithm.model_validate({"name": name, "learning_rate": 1e-6, **keys})

    bounds = {name: (found(name).clip_low, found(name).clip_high) for name in ("gspo", "cispo")}
    assert bounds == {"gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}
    assert found("cispo").loss_aggregation == "token-mean" and found("gspo", clip_high=0.1).clip_high == 0.1
    assert {name for name in OWN if found(name).whole_step} == {"reinforce_plus_plus_baseline"}
    assert found("grpo", loss_aggregation="step-token-mean").whole_step == "loss_aggregation: step-token-mean"


def test_an_objective_is_dollars_within_seconds_or_told_how_to_be():
    assert objective_of("usd-within 120") == objective_of("usd-within:120") == ("usd", 120.0)
    assert [objective_of(text) for text in ("seconds", "usd")] == [("seconds", None), ("usd", None)]
    for text in ("usd-within", "usd-within 0", "usd-within soon", "usd-within nan", "usd 120", "cheap"):
        with pytest.raises(InputError, match="objective"):
            objective_of(text)
    assert loads(f"{JOB}objective: usd-within 90\n", Job).objective == "usd-within 90"
    with pytest.raises(InputError, match="write it as usd-within 120"):
        loads(f"{JOB}objective: usd-within\n", Job)


def test_only_what_a_job_sets_otherwise_is_told():
    keys = {"loss_aggregation": "token-mean", "clip_low": 0.2, "dynamic_sampling": True, "importance_sampling": {}}
    found = Algorithm.model_validate({"name": "dr_grpo", "learning_rate": 1e-6, **keys})
    assert found.loss_aggregation == "token-mean" and found.importance_sampling is not None
    assert found.overrides()[:2] == (
        "loss_aggregation is token-mean (dr_grpo: seq-mean-token-sum-norm)",
        "dynamic_sampling is true (dr_grpo: false)",
    )
    bounded = Algorithm.model_validate({"name": "gspo", "learning_rate": 1e-6, "dual_clip": 3.0, "entropy_bonus": 0.01})
    assert bounded.overrides() == ("dual_clip is 3.0 (gspo: null)", "entropy_bonus is 0.01 (gspo: 0.0)")
    job = loads(JOB.replace("name: grpo", "name: rloo"), Job)
    assert "loss_aggregation" not in job.algorithm.model_fields_set and loads(dump(job), Job) == job


def test_a_list_of_rewards_keeps_its_weights_and_form():
    several = loads(SEVERAL, Job)
    reward = several.reward
    assert [(part.label, part.weight) for part in reward.parts] == [
        ("format", 0.1), ("right", 1.0), ("length", 1.0), ("overlong", 0.5), ("judge", 1.0)
    ]  # fmt: skip
    assert [part.label for part in reward.pooled] == ["right", "format"], "a pattern is the last of the pools"
    assert (reward.kind, reward.workers, reward.deadline_s) == ("math", 3, 2.0)
    assert reward.judge is not None and reward.judge.worth()["3"] == 0.75
    assert loads(dump(several), Job) == several
    assert isinstance(reward, RewardList) and "sections" not in dump(several)
    plain = loads(JOB, Job).reward
    assert type(plain) is RewardSpec and plain.parts == plain.pooled == (plain,) and plain.judge is None


def test_a_timeout_that_adapts_is_off_where_it_is_not_named(folder):
    def numbers():
        job, plan = load_job(folder.path("job.yaml")), load_plan(folder.path("plan.yaml"))
        return [each.timeout_spec() for each in (job.reward, plan.job.reward)], dump(job) + dump(plan)

    found, text = numbers()
    assert found == [TimeoutSpec(2.0)] * 2 and "timeout" not in text
    folder.edit("job.yaml", DEADLINE, f"{DEADLINE}  {TIMEOUT}\n")
    folder.edit("plan.yaml", "deadline_s: 2.0}", f"deadline_s: 2.0, {TIMEOUT}}}")
    folder.check()
    found, text = numbers()
    assert found == [TimeoutSpec(2.0, 0.5, 1.5)] * 2 and text.count(TIMEOUT) == 2


def test_a_plan_without_judge_and_a_job_without_workers_write_none(folder):
    text = dump(load_plan(folder.path("plan.yaml")))
    assert "judge" not in text and "synchronous" not in text
    folder.edit("plan.yaml", "2.0}", "2.0, judge: {place: beside, instances: 2}, synchronous: true}")
    plan = load_plan(folder.path("plan.yaml"))
    assert plan.job.reward.judge == RewardJudge(place="beside", instances=2, tp=1) and plan.job.reward.synchronous
    assert "synchronous: true" in dump(plan)
    job = loads(JOB.replace("  workers: 1\n", "").replace(DEADLINE, f"{DEADLINE}  shortest_deadline_s: 0.5\n"), Job)
    assert (job.reward.workers, job.reward.shortest_deadline_s) == (None, 0.5)
    assert "workers" not in dump(job) and "shortest_deadline_s: 0.5" in dump(job)


def test_a_job_says_which_levers_may_be_considered():
    search = loads(JOB, Job).search
    assert search.hand_over == () and search.drafts is None
    levers = "search:\n  hand_over: [0.4, 0.6]\n  drafts: {tokens: [2, 4], acceptance: 0.6}\n"
    job = loads(JOB.replace("search:\n", levers), Job)
    assert job.search.hand_over == (0.4, 0.6) and "  hand_over: [0.4, 0.6]\n" in dump(job)
    assert job.search.drafts == SearchDrafts(tokens=(2, 4), acceptance=0.6)


def test_a_plan_carries_the_levers_of_each_kind_of_round(folder):
    plan = folder.path("plan.yaml")
    text = plan.read_text()
    before = load_plan(plan)
    plan.write_text(text.replace("      hand_over: null\n", "").replace(", drafts: null", ""))
    assert load_plan(plan) == before, "an older plan names none"
    plan.write_text(text)
    folder.edit("plan.yaml", "80, drafts: null", "80, drafts: {tokens: 4, up_to_sequences: 32}")
    folder.edit("plan.yaml", "hand_over: null\n    long", "hand_over: {engines: 1, at_finished: 0.6}\n    long")
    folder.check()
    rounds = load_plan(plan).job.rounds
    assert rounds.short.rollout.drafts == RoundDrafts(tokens=4, up_to_sequences=32)
    assert rounds.short.hand_over == RoundHandOver(engines=1, at_finished=0.6)
    assert rounds.long is not None and rounds.long.rollout.drafts is None and rounds.long.hand_over is None


def test_paths_are_relative_to_the_job_and_hub_ids_not(folder, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    paths = job_paths(load_job("../job.yaml"), "../job.yaml")
    assert (paths.model, paths.model_folder) == (str(folder.root / "model"), folder.root / "model")
    assert paths.data == folder.root / "data.jsonl"
    folder.edit("job.yaml", "path: model,", "path: Qwen/Qwen2.5-0.5B,")
    paths = job_paths(load_job(folder.path("job.yaml")), folder.path("job.yaml"))
    assert (paths.model, paths.model_folder) == ("Qwen/Qwen2.5-0.5B", None)


@pytest.mark.parametrize("path", ["models", "./models", "../a/b", "a/b/c", "/a/b", "dta.jsonl"])
def test_a_local_file_that_is_missing_is_told_at_its_line(folder, path):
    is_data = path.endswith("jsonl")
    line = folder.edit("job.yaml", "data.jsonl" if is_data else "path: model,", path if is_data else f"path: {path},")
    with pytest.raises(InputError, match=r"no such file: 'dta\.jsonl'" if is_data else "no such folder") as caught:
        job_paths(load_job(folder.path("job.yaml")), folder.path("job.yaml"))
    assert caught.value.line == line


def test_packages_and_shares_are_of_code_rewards_alone():
    code = RewardSpec(kind="code", deadline_s=5.0, packages=["numpy", "pytest"], partial=True)
    assert (code.packages, code.partial, code.model_dump()["packages"]) == (
        ("numpy", "pytest"),
        True,
        ("numpy", "pytest"),
    )
    assert not {"packages", "partial"} & RewardSpec(kind="code", deadline_s=5.0).model_dump().keys()
    for key, value in (("packages", ["numpy"]), ("partial", True)):
        with pytest.raises(ValueError, match=f"{key} has no effect with kind math; remove it or write kind: code"):
            RewardSpec(kind="math", deadline_s=5.0, **{key: value})
    with pytest.raises(ValueError, match="packages"):
        RewardSpec(kind="code", deadline_s=5.0, packages=["numpy>=2"])
