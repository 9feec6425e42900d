"""Every key of a plan is read by the executor, refused by it, or there for people: no key is a promise nobody keeps."""

from pathlib import Path

import pytest
import yaml

from rlplan.plans.facts.device_shares import engine_share, kv_value_bytes
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import JobPaths, load_job
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import loads

from ..documents import CLUSTER
from .conftest import leaves, with_values

TABLE = yaml.safe_load(Path(__file__).with_name("keys.yaml").read_text())
SHOWN = TABLE["shown"]


def of_both_kinds(table):
    """By key: what is there before, and another value; `*` stands for both kinds of round."""
    return {
        key.replace("*", kind): ({k.replace("*", kind): v for k, v in each.get("from", {}).items()}, each["to"])
        for key, each in table.items()
        for kind in ("short", "long")
    }


READ, FURTHER, REFUSED = (of_both_kinds(TABLE[name]) for name in ("read", "further", "refused"))


def edited(document, values):
    return with_values(document, values, TABLE["sections"])


def with_value(model, path, value):
    """A copy of a document, not validated, with another value at a path."""
    key, *rest = path
    return model.model_copy(update={key: with_value(getattr(model, key), rest, value) if rest else value})


PATHS = JobPaths("model", Path("data.jsonl"), None, Path())


class Documents:
    """The folder's plan as plain data, with a cluster of two pools."""

    def __init__(self, folder):
        self.folder = folder
        self.plan = edited(yaml.safe_load(folder.path("plan.yaml").read_text()), {"job.rounds.long.train.dp": 1})
        second = CLUSTER[CLUSTER.index("  main:") :].replace("main", "other").replace("cores: 2", "cores: 3")
        folder.edit("cluster.yaml", CLUSTER, CLUSTER + second)
        self.cluster = loads(CLUSTER + second, Cluster)
        self.plan["inputs"] = yaml.safe_load(folder.path("plan.yaml").read_text())["inputs"]

    def configuration(self, plan):
        """What would be started for this plan."""
        from rlplan.executor.configuration import configuration

        job, cluster, paths = load_job(self.folder.path("job.yaml")), self.cluster, PATHS
        pool = cluster.pools[plan.job.rounds.short.rollout.pool]
        train_pool = None if plan.job.placement is None else cluster.pools[plan.job.placement.train_pool]
        return configuration([plan.job], job, paths, pool, train_pool)

    def refuses(self, document):
        """What `execute` says before it starts anything; empty if it would run the plan."""
        from rlplan.executor.prepare import prepare

        self.folder.path("edited.yaml").write_text(yaml.safe_dump(document))
        try:
            prepare([self.folder.path("edited.yaml")], self.folder.path("run"), resume=False)
        except InputError as error:
            return str(error)
        return ""


@pytest.fixture
def documents(folder):
    return Documents(folder)


def test_every_key_of_a_plan_is_read_or_refused_or_shown():
    found = list(dict.fromkeys(leaves(Plan)))
    assert len(found) > 100, "the walk misses sections"
    shown = {leaf for leaf in found if leaf.startswith(tuple(SHOWN))}
    kinds = [set(READ), set(FURTHER), set(TABLE["further_shown"]), set(REFUSED), shown]
    assert sorted(leaf for leaf in found if not any(leaf in kind for kind in kinds)) == [], "say what becomes of them"
    assert sorted((set(READ) | set(FURTHER) | set(REFUSED)) - set(found)) == [], "keys that are no more"
    assert sum(map(len, kinds)) == len(set.union(*kinds)), "a key is declared twice"
    assert all(any(leaf.startswith(prefix) for leaf in found) for prefix in SHOWN)


def test_each_key_that_is_read_changes_what_is_started(documents, monkeypatch):
    pytest.importorskip("ray")
    from rlplan.executor import configuration

    monkeypatch.setattr(configuration, "kv_bytes_per_token", lambda *_: 64)  # the folder has no model
    for leaf, (before, value) in READ.items():
        plan = Plan.model_validate(edited(documents.plan, before))
        # Not validated: some keys may only change together, and here one alone has to make the difference.
        changed = with_value(plan, leaf.split("."), value)
        assert changed != plan, leaf
        try:
            assert documents.configuration(changed) != documents.configuration(plan), leaf
        except ValueError as error:
            assert "a round" in str(error) or "mode" in str(error), leaf  # the machines themselves object


def test_the_keys_of_a_jobs_model_change_what_is_started(documents):
    pytest.importorskip("ray")
    plan = Plan.model_validate(documents.plan)
    plain = documents.configuration(plan)
    documents.folder.edit("job.yaml", "dtype: float32", "dtype: float32, head_dtype: float32, compile: 'on'")
    found = documents.configuration(plan)
    assert (plain.fleet.head_dtype, found.fleet.head_dtype) == (None, "float32")
    settings = [(trainer.head_dtype, trainer.compile) for each in (plain, found) for trainer in each.trainers]
    assert settings == [(None, "auto"), ("float32", "on")]


def test_a_jobs_engine_section_changes_its_engines_and_is_refused_on_cores(documents):
    pytest.importorskip("ray")
    from rlplan.executor.configuration import fleet_config

    job, gpus = documents.folder.path("job.yaml"), documents.cluster.pools["main"]
    said = "engine: {kv_cache_dtype: fp8, max_num_batched_tokens: 2048, gpu_memory_utilization: 0.6}\n"
    job.write_text(job.read_text() + said)
    given = load_job(job)
    gpus = with_value(gpus, ["accelerators", "kind"], "cuda")
    found = fleet_config([EngineLayout(1, 1)], given, "model", gpus, 4)
    assert (found.kv_dtype, found.batched_tokens, found.share) == ("fp8", 2048, 0.6)
    assert engine_share(given) == 0.6 and (given.kv_dtype, kv_value_bytes(given)) == ("fp8", 1)
    with pytest.raises(InputError, match=r"engine.kv_cache_dtype: engines on CPUs have none; remove it"):
        fleet_config([EngineLayout(1, 1)], given, "model", with_value(gpus, ["accelerators", "kind"], "cpu"), 4)


def test_a_job_and_its_evaluations_have_rules_of_their_own(documents):
    pytest.importorskip("ray")
    from rlplan.executor.configuration import sampling_rules

    plan, job = Plan.model_validate(documents.plan), documents.folder.path("job.yaml")
    assert not documents.configuration(plan).fleet.restricts
    ends = "  stop: [</a>]\n  stop_token_ids: [7]\n"
    documents.folder.edit("job.yaml", "rollout:\n", f"rollout:\n{ends}")
    assert not documents.configuration(plan).fleet.restricts, "any token may be drawn"
    job.write_text(job.read_text() + "evaluate: {data: e.jsonl, every_steps: 5, top_p: 0.5, top_k: 8, min_p: 0.1}\n")
    assert documents.configuration(plan).fleet.restricts
    documents.folder.edit("job.yaml", ends, f"{ends}  top_p: 0.9\n  top_k: 40\n  min_p: 0.05\n")
    found = load_job(job)
    assert sampling_rules(found) == (0.9, 40, 0.05, ("</a>",), (7,))
    assert sampling_rules(found, found.evaluate) == (0.5, 8, 0.1, ("</a>",), (7,))


def test_each_key_of_a_further_pool_changes_what_is_started(documents):
    pytest.importorskip("ray")
    job = 'kind: function\n  function: "pkg.mod:score"\n  workers: 1\n  deadline_s: 2.0\n  retries: 2\n'
    assert job in documents.folder.path("job.yaml").read_text()
    parts = "\n  - {kind: function, function: 'pkg.mod:score', deadline_s: 2.0}\n"
    parts += "  - {kind: format, name: shape, pattern: '.*', deadline_s: 1.0}\n"
    documents.folder.edit("job.yaml", f"\n  {job}", parts)
    pool = {"workers": 1, "deadline_s": 1.0, "adaptive_timeout": {"min_s": 0.5, "anchor_factor": 1.5}}
    plan = Plan.model_validate(edited(documents.plan, {"job.reward.further": {"shape": pool}}))
    for leaf, (_, value) in FURTHER.items():
        path = leaf.removeprefix("job.reward.further.").split(".")
        changed_pool = with_value(plan.job.reward.further["shape"], path, value)
        changed = with_value(plan, ["job", "reward", "further"], {"shape": changed_pool})
        assert documents.configuration(changed) != documents.configuration(plan), leaf
    named = with_value(plan.job.reward.further["shape"], ["kind"], "format")
    same = with_value(plan, ["job", "reward", "further"], {"shape": named})
    assert documents.configuration(same).rewards["shape"] == documents.configuration(plan).rewards["shape"]


def test_each_key_that_cannot_be_run_is_refused_by_name(documents):
    assert documents.refuses(documents.plan) == ""
    for leaf, (before, value) in REFUSED.items():
        said = documents.refuses(edited(documents.plan, {**before, leaf: value}))
        section = next((name for name in TABLE["sections"] if f".{name}." in leaf), leaf.split(".")[-1])
        assert section in said or (leaf.split(".")[0] == "rlplan" and "rlplan" in said), (leaf, said)
        assert "\n" not in said


def test_what_is_only_shown_changes_nothing_that_is_started(documents):
    pytest.importorskip("ray")
    changed = edited(documents.plan, {key: value for edits in SHOWN.values() for key, value in edits.items()})
    assert documents.refuses(changed) == ""
    shown, plain = (Plan.model_validate(document) for document in (changed, documents.plan))
    assert shown != plain
    assert documents.configuration(shown) == documents.configuration(plain)


POOL = "job.rounds.short.rollout.pool"


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ({"job.reward.workers": 2}, "job.reward.workers: is 2, not 1 as in plan.yaml"),
        ({POOL: "other", POOL.replace("short", "long"): "other"}, f"{POOL}: is other, not main as in plan.yaml"),
        ({"job.placement": {"train_pool": "other"}}, "job.placement.train_pool: is other, and there is none in plan"),
    ],
)
def test_plans_that_take_turns_agree_on_what_is_started_once(documents, edits, says):
    from rlplan.executor.prepare import prepare

    first, second = documents.folder.path("plan.yaml"), documents.folder.path("second.yaml")
    first.write_text(yaml.safe_dump(documents.plan))
    second.write_text(yaml.safe_dump(edited(documents.plan, {"job.reward.deadline_s": 1.0})))
    assert len(prepare([first, second], documents.folder.path("run"), resume=False)) == 2
    second.write_text(yaml.safe_dump(edited(documents.plan, edits)))
    with pytest.raises(InputError) as caught:
        prepare([first, second], documents.folder.path("run"), resume=False)
    assert says in str(caught.value) and "; plans that are executed in turns" in str(caught.value)
    assert caught.value.line is not None
    if "job.placement" in edits:
        with pytest.raises(InputError, match=r"job.placement.train_pool: there is none, not other as in second.yaml"):
            prepare([second, first], documents.folder.path("run"), resume=False)


def test_the_longest_deadline_of_plans_that_take_turns_is_the_workers(documents):
    pytest.importorskip("ray")
    from rlplan.executor.configuration import configuration

    job = load_job(documents.folder.path("job.yaml"))
    pool = loads(CLUSTER, Cluster).pools["main"]
    plans = [Plan.model_validate(documents.plan).job]
    plans.append(Plan.model_validate(edited(documents.plan, {"job.reward.deadline_s": 9.0})).job)
    made = configuration(plans, job, PATHS, pool)
    assert [pool.deadline_s for pool in made.rewards.values()] == [9.0]
    assert [run.timeouts["function"].max_s for run in made.runs] == [2.0, 9.0]
