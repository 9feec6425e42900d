"""Every key of a plan is read by the executor, refused by it, or there for people: no key is a promise nobody keeps."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import JobPaths, load_job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import loads

from ..documents import CLUSTER
from .conftest import Folder

S, L = "job.rounds.short.", "job.rounds.long."
DEFER: dict[str, Any] = {"job.bias.mode": "defer", S + "cutoff_tokens": None, L + "issue.copies": 1}
PREDICT: dict[str, Any] = {**DEFER, "job.bias.mode": "predict", S + "long_share": 0.3, S + "issue.prompts": 16}
ADAPTS: dict[str, Any] = {"job.reward.adaptive_timeout": {"min_s": 0.5, "anchor_factor": 1.5}}

PREFIX = {"block_tokens": 16, "tokens_per_sample": 100}
BALANCE = {
    "by": "history", "step_s": 0.01, "step_s_per_sequence": 1e-4, "step_s_per_kv_token": 1e-8,
    "kv_capacity_tokens": 1000, "move_s": 0.05, "move_s_per_token": 1e-5,
}  # fmt: skip
HAND_OVER = {"engines": 1, "at_finished": 0.5}
TAIL = {"engines": 1, "tp": 2, "at_finished": 0.5}
READ: dict[str, tuple[dict[str, Any], Any]] = {
    "job.bias.mode": (DEFER, "race"),
    "job.placement.train_pool": ({"job.placement.train_pool": "main"}, "other"),
    "job.issue.prompts_per_step": ({}, 15),
    "job.issue.samples_per_prompt": ({}, 7),
    S + "issue.prompts": ({}, 24),
    S + "issue.samples": ({**DEFER, "job.bias.mode": "race"}, 9),
    S + "cutoff_tokens": ({}, 200),
    S + "long_share": (PREDICT, 0.2),
    S + "rollout.pool": ({}, "other"),
    S + "rollout.engines": ({}, 1),
    S + "rollout.tp": ({}, 2),
    S + "rollout.max_num_seqs": ({}, 100),
    **{f"{S}train.{key}": ({}, 2) for key in ("dp", "tp", "sp")},
    **{
        f"{kind}train.{key}": ({}, value)
        for kind in (S, L)
        for key, value in {"recompute": "full", "offload": True}.items()
    },
    S + "train.micro_batch_tokens": ({}, 2048),
    L + "issue.copies": ({}, 2),
    L + "rollout.engines": ({}, 2),
    L + "rollout.tp": ({}, 1),
    L + "rollout.max_num_seqs": ({}, 200),
    L + "train.micro_batch_tokens": ({}, 4096),
    "job.reward.workers": ({}, 3),
    "job.reward.deadline_s": ({}, 3.0),
    "job.reward.adaptive_timeout.min_s": (ADAPTS, 0.4),
    "job.reward.adaptive_timeout.anchor_factor": (ADAPTS, 2.0),
    "job.loss.samples": ({}, 64.0),
    "job.loss.tokens": ({}, 2048),
    "job.sync.checksum_every": ({}, 5),
    "job.sync.relay": ({}, True),
    "job.placement.streams": ({"job.placement": {"train_pool": "other"}}, True),
    **{
        f"{kind}hand_over.{key}": ({kind + "rollout.engines": 3, kind + "hand_over": HAND_OVER}, value)
        for kind in (S, L)
        for key, value in {"engines": 2, "at_finished": 0.6, "growth_tokens": 5}.items()
    },
    **{
        f"{L}tail.{key}": ({L + "rollout.engines": 4, L + "rollout.tp": 1, L + "tail": TAIL}, value)
        for key, value in {"engines": 2, "tp": 4, "at_finished": 0.6, "growth_tokens": 5}.items()
    },
    **{
        f"{kind}rollout.prefix.{key}": ({f"{kind}rollout.prefix": PREFIX}, value)
        for kind in (S, L)
        for key, value in {"block_tokens": 32, "tokens_per_sample": 200}.items()
    },
    **{
        f"{kind}rollout.balance.{key}": ({f"{kind}rollout.balance": BALANCE}, value)
        for kind in (S, L)
        for key, value in {
            "step_s": 0.02,
            "step_s_per_sequence": 2e-4,
            "step_s_per_kv_token": 2e-8,
            "kv_capacity_tokens": 2000,
            "move_s": 0.1,
            "move_s_per_token": 2e-5,
        }.items()
    },
}
"""What the executor's configuration depends on: what is there before, and another value."""

DRAFTS = {"tokens": 2, "up_to_sequences": 8}
READ |= {
    f"{kind}rollout.drafts.{key}": ({f"{kind}rollout.drafts": DRAFTS}, value)
    for kind in (S, L)
    for key, value in {"tokens": 3, "up_to_sequences": 9, "run_ahead": 4}.items()
}
JUDGE = {"place": "beside", "instances": 1, "tp": 1}
READ |= {
    f"job.reward.judge.{key}": ({"job.reward.judge": JUDGE}, value)
    for key, value in {
        "place": "own", "instances": 2, "tp": 2, "at_once": 4, "share": 0.3, "deadline_s": 3.0
    }.items()
}  # fmt: skip

FURTHER: dict[str, tuple[dict[str, Any], Any]] = {
    "job.reward.further.workers": ({}, 3),
    "job.reward.further.deadline_s": ({}, 4.0),
    "job.reward.further.adaptive_timeout.min_s": ({}, 0.4),
    "job.reward.further.adaptive_timeout.anchor_factor": ({}, 2.0),
}
"""Keys of the pools of further parts of a reward, which stand under the names of the parts."""

FURTHER_SHOWN = {"job.reward.further.kind"}
"""Those that only predictions read."""

REWARDS = {"library": "code", "sha256": "d" * 64}
REFUSED: dict[str, tuple[dict[str, Any], Any]] = {
    "rlplan": ({}, 2),
    **{f"inputs.{name}.path": ({}, "elsewhere") for name in ("cluster", "job", "profile", "lengths")},
    **{f"inputs.{name}.sha256": ({}, "b" * 64) for name in ("cluster", "job", "profile", "lengths")},
    "inputs.lengths.library": ({}, "math-16k"),  # beside the path that is there
    "inputs.lengths.assumed": ({}, "p50=800,p95=4000,max=16384,icc=0.5"),
    "inputs.lengths.scale": ({}, 0.9),
    "job.name": ({}, "another"),
    **{f"{kind}rollout.drafts.source": ({f"{kind}rollout.drafts": DRAFTS}, "model") for kind in (S, L)},
    **{f"{kind}rollout.balance.by": ({}, "count") for kind in (S, L)},
    **{f"{kind}train.{key}": ({}, 2) for kind in (S, L) for key in ("pp", "cp", "ep")},
    L + "issue.prompts": ({}, 15),
    L + "issue.samples": ({}, 7),
    L + "rollout.pool": ({}, "other"),
    **{f"{L}train.{key}": ({}, 2) for key in ("dp", "tp", "sp")},
    "job.reward.synchronous": ({}, True),
}
"""What has one value that can be run, or none: what is there before, and a value that is refused."""

SHOWN = (
    "inputs.profile.provenance", "inputs.rewards.", "inputs.solver_read", "solver.", "decisions_sha256",
    "predicted_sha256", "job.bias.budget", "job.why", "predicted.", "volatile.",
)  # fmt: skip
"""What is there for people, reports and checks: the executor runs the same whatever it says."""

WHOLE = {"balance": BALANCE, "drafts": DRAFTS, "hand_over": HAND_OVER, "tail": TAIL, "judge": JUDGE,
         "adaptive_timeout": ADAPTS, "rewards": REWARDS, "placement": {"train_pool": "main"}}  # fmt: skip
"""Sections that come whole or not at all."""


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all keys below a model that are no sections themselves."""
    for name, field in model.model_fields.items():
        sections = list(models_in(field.annotation))
        for section in sections:
            yield from leaves(section, f"{prefix}{name}.")
        if not sections:
            yield prefix + name


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def edited(document: Any, edits: Mapping[str, Any]) -> Any:
    """A copy with other values at dotted paths; a section that is absent is there whole as soon as a key of it is."""
    document = yaml.safe_load(yaml.safe_dump(document))
    for path, value in edits.items():
        *sections, key = path.split(".")
        at = document
        for section in sections:
            if at.get(section) is None:
                at[section] = dict(WHOLE[section])
            at = at[section]
        at[key] = value
    return document


def with_value(model: Any, path: list[str], value: Any) -> Any:
    """A copy of a document, not validated, with another value at a path."""
    key, *rest = path
    return model.model_copy(update={key: with_value(getattr(model, key), rest, value) if rest else value})


class Documents:
    """The folder's plan as plain data, with a cluster of two pools."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.plan = edited(yaml.safe_load(folder.path("plan.yaml").read_text()), {L + "train.dp": 1})
        second = CLUSTER[CLUSTER.index("  main:") :].replace("main", "other").replace("cores: 2", "cores: 3")
        folder.edit("cluster.yaml", CLUSTER, CLUSTER + second)
        self.plan["inputs"] = yaml.safe_load(folder.path("plan.yaml").read_text())["inputs"]

    def configuration(self, plan: Plan) -> Any:
        """What would be started for this plan."""
        from rlplan.executor.configuration import configuration

        job = load_job(self.folder.path("job.yaml"))
        cluster = loads(self.folder.path("cluster.yaml").read_text(), Cluster)
        paths = JobPaths("model", Path("data.jsonl"), None, Path())
        pool = cluster.pools[plan.job.rounds.short.rollout.pool]
        train_pool = None if plan.job.placement is None else cluster.pools[plan.job.placement.train_pool]
        return configuration([plan.job], job, paths, pool, train_pool)

    def refuses(self, document: Any) -> str:
        """What `execute` says before it starts anything; empty if it would run the plan."""
        from rlplan.executor.prepare import prepare

        self.folder.path("edited.yaml").write_text(yaml.safe_dump(document))
        try:
            prepare([self.folder.path("edited.yaml")], self.folder.path("run"), resume=False)
        except InputError as error:
            return str(error)
        return ""


@pytest.fixture
def documents(folder: Folder) -> Documents:
    return Documents(folder)


def test_every_key_of_a_plan_is_read_or_refused_or_shown_and_only_one_of_them() -> None:
    found = list(dict.fromkeys(leaves(Plan)))
    assert len(found) > 100, "the walk misses sections"
    shown = {leaf for leaf in found if leaf.startswith(SHOWN)}
    kinds = [set(READ), set(FURTHER), FURTHER_SHOWN, set(REFUSED), shown]
    assert sorted(leaf for leaf in found if not any(leaf in kind for kind in kinds)) == [], "say what becomes of them"
    assert sorted((set(READ) | set(FURTHER) | set(REFUSED)) - set(found)) == [], "keys that are no more"
    assert sum(map(len, kinds)) == len(set.union(*kinds)), "a key is declared twice"
    assert all(any(leaf.startswith(prefix) for leaf in found) for prefix in SHOWN)


def test_a_change_of_each_key_that_is_read_changes_what_is_started(documents: Documents) -> None:
    pytest.importorskip("ray")
    for leaf, (before, value) in READ.items():
        plan = loads(yaml.safe_dump(edited(documents.plan, before)), Plan)
        # Not validated: some keys may only change together, and here one alone has to make the difference.
        changed = with_value(plan, leaf.split("."), value)
        assert changed != plan, leaf
        try:
            assert documents.configuration(changed) != documents.configuration(plan), leaf
        except ValueError as error:
            assert "a round" in str(error) or "mode" in str(error), leaf  # the machines themselves object


def test_a_change_of_each_key_of_a_further_pool_changes_what_is_started(documents: Documents) -> None:
    pytest.importorskip("ray")
    job = 'kind: function\n  function: "pkg.mod:score"\n  workers: 1\n  deadline_s: 2.0\n  retries: 2\n'
    assert job in documents.folder.path("job.yaml").read_text()
    parts = "\n  - {kind: function, function: 'pkg.mod:score', deadline_s: 2.0}\n"
    parts += "  - {kind: format, name: shape, pattern: '.*', deadline_s: 1.0}\n"
    documents.folder.edit("job.yaml", f"\n  {job}", parts)
    pool = {"workers": 1, "deadline_s": 1.0, "adaptive_timeout": {"min_s": 0.5, "anchor_factor": 1.5}}
    plan = loads(yaml.safe_dump(edited(documents.plan, {"job.reward.further": {"shape": pool}})), Plan)
    for leaf, (_, value) in FURTHER.items():
        path = leaf.removeprefix("job.reward.further.").split(".")
        changed_pool = with_value(plan.job.reward.further["shape"], path, value)
        changed = with_value(plan, ["job", "reward", "further"], {"shape": changed_pool})
        assert documents.configuration(changed) != documents.configuration(plan), leaf
    named = with_value(plan.job.reward.further["shape"], ["kind"], "format")
    same = with_value(plan, ["job", "reward", "further"], {"shape": named})
    assert documents.configuration(same).rewards["shape"] == documents.configuration(plan).rewards["shape"]


def test_a_change_of_each_key_that_cannot_be_run_is_refused_with_its_name(documents: Documents) -> None:
    assert documents.refuses(documents.plan) == ""
    for before in [before for before, _ in REFUSED.values() if before][:1]:
        assert documents.refuses(edited(documents.plan, before)) == ""
    for leaf, (before, value) in REFUSED.items():
        said = documents.refuses(edited(documents.plan, {**before, leaf: value}))
        section = next((name for name in WHOLE if f".{name}." in leaf), leaf.split(".")[-1])
        assert section in said or (leaf.split(".")[0] == "rlplan" and "rlplan" in said), (leaf, said)
        assert "\n" not in said


def test_a_change_of_what_is_only_shown_changes_nothing_that_is_started(documents: Documents) -> None:
    pytest.importorskip("ray")
    edits = {
        "inputs.profile.provenance": "derived", "inputs.rewards.library": "math",
        "inputs.solver_read": {"cluster": "0" * 16, "job": "1" * 16, "profile": "2" * 16},
        "solver.status": "feasible", "solver.candidates": 7,
        "decisions_sha256": "c" * 64, "predicted_sha256": "d" * 64, "job.bias.budget": 0.5, "predicted.nodes": 2,
        "job.why": {"nothing": "at all"},
        "predicted.step_s.p50": 0.1, "volatile.solve_s": 9.0,
    }  # fmt: skip
    assert all(any(leaf.startswith(prefix) for leaf in edits) for prefix in SHOWN)
    changed = edited(documents.plan, edits)
    assert documents.refuses(changed) == ""
    shown, plain = (loads(yaml.safe_dump(document), Plan) for document in (changed, documents.plan))
    assert shown != plain
    assert documents.configuration(shown) == documents.configuration(plain)


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ({"job.reward.workers": 2}, "job.reward.workers: is 2, not 1 as in plan.yaml"),
        (
            {S + "rollout.pool": "other", L + "rollout.pool": "other"},
            "job.rounds.short.rollout.pool: is other, not main as in plan.yaml",
        ),
        (
            {"job.placement": {"train_pool": "other"}},
            "job.placement.train_pool: is other, and there is none in plan",
        ),
    ],
)
def test_plans_that_take_turns_agree_on_what_is_started_once(
    documents: Documents, edits: dict[str, Any], says: str
) -> None:
    from rlplan.executor.prepare import prepare

    first, second = documents.folder.path("plan.yaml"), documents.folder.path("second.yaml")
    first.write_text(yaml.safe_dump(documents.plan))
    second.write_text(yaml.safe_dump(edited(documents.plan, {"job.reward.deadline_s": 1.0})))
    assert len(prepare([first, second], documents.folder.path("run"), resume=False)) == 2
    second.write_text(yaml.safe_dump(edited(documents.plan, edits)))
    with pytest.raises(InputError) as caught:
        prepare([first, second], documents.folder.path("run"), resume=False)
    assert says in str(caught.value) and caught.value.line is not None
    if "job.placement" in edits:
        with pytest.raises(InputError, match=r"job.placement.train_pool: there is none, not other as in second.yaml"):
            prepare([second, first], documents.folder.path("run"), resume=False)


def test_the_longest_deadline_of_plans_that_take_turns_is_the_workers(documents: Documents) -> None:
    pytest.importorskip("ray")
    from rlplan.executor.configuration import configuration

    job = load_job(documents.folder.path("job.yaml"))
    pool = loads(CLUSTER, Cluster).pools["main"]
    paths = JobPaths("model", Path("data.jsonl"), None, Path())
    plans = [loads(yaml.safe_dump(documents.plan), Plan).job]
    plans.append(loads(yaml.safe_dump(edited(documents.plan, {"job.reward.deadline_s": 9.0})), Plan).job)
    made = configuration(plans, job, paths, pool)
    assert [pool.deadline_s for pool in made.rewards.values()] == [9.0]
    assert [run.timeouts["function"].max_s for run in made.runs] == [2.0, 9.0]
