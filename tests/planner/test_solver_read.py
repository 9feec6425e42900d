"""Each key of a job and of a cluster is read by the solver, or makes no plan stale, or is what the trace is of."""

import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rlplan.planner.choose.candidates.solve_options import Pass
from rlplan.plans.facts.digest import UNREAD, digest_of
from rlplan.plans.schema.algorithm import Algorithm
from rlplan.plans.schema.base import Strict
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.yaml_io import dump

from ..plans.conftest import models_in
from .conftest import laptop, small_job, small_profile
from .solutions import SMALL, solve_afresh
from .test_whole_plans import LINKS, two_pools

REWARD = {"kind": "math", "workers": 1, "deadline_s": 2.0, "adaptive_timeout": {"min_s": 0.5, "anchor_factor": 1.5}}
FULL = {
    "reward": REWARD,
    "search": {
        "tp": [1, 2], "micro_batch_tokens": [2048, 4096], "hand_over": [0.5], "tail": [0.5],
        "drafts": {"tokens": [2], "acceptance": 0.6}, "cutoff_tokens": {"min": 2},
    },
    "slo": {"step_p95_s": 1e6},
    "placement": {"train_pool": "learn"},
}  # fmt: skip
TAGS = {"kind": "format", "name": "tags", "pattern": "<a>.*", "deadline_s": 2.0}
KL = {"name": "grpo", "learning_rate": 1e-3, "kl": {"coefficient": 0.001, "estimator": "k3", "applied_to": "reward"}}
TOGETHER = {**FULL, "reward": [REWARD, TAGS], "placement": None, "algorithm": KL}
"""Engines hand over only where trainers have no pool of their own; further parts of a reward have names; a reference
takes memory."""


SECTIONS = ("algorithm.importance_sampling", "algorithm.schedule", "evaluate", "logprob_limits")
"""Sections of a job that decide nothing as a whole."""


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted path, name of the model that has it, key) of each key below a model that is no section itself."""
    for name, field in model.model_fields.items():
        sections = list(models_in(field.annotation))
        star = "*." if typing.get_origin(field.annotation) is dict or "dict" in str(field.annotation)[:30] else ""
        for section in sections:
            yield from leaves(section, f"{prefix}{name}.{star}")
        if not sections:
            yield f"{prefix}{name}", model.__name__, name


@pytest.fixture(scope="module")
def read() -> set[tuple[str, str]]:
    """(model, key) of all that two solves read of the documents, which were validated before."""
    # An accelerator's memory is looked at where the profile knows what a trainer takes of it.
    trains = tuple(train.model_copy(update={"peak_bytes": 10**8}) for train in small_profile().train)
    costs, seen = small_profile(train=trains), set()

    def recording(self: Strict, name: str) -> Any:
        seen.add((type(self).__name__, name))
        return object.__getattribute__(self, name)

    given = [(two_pools(laptop(), links=LINKS), small_job(SMALL, **FULL)), (laptop(), small_job(SMALL, **TOGETHER))]
    with pytest.MonkeyPatch.context() as patch:
        seen.add(("Job", "objective"))  # api reads it before the solver, which has it among its options
        # It tells a reader what the job overrides, and decides nothing by it.
        patch.setattr(Algorithm, "overrides", lambda self: ())
        # It is in the digest where it is not None.
        patch.setattr(Algorithm, "whole_step", None)
        patch.setattr(Strict, "__getattribute__", recording)
        for cluster, job in given:
            solve_afresh(job, cluster=cluster, profile=costs, passes=(Pass(2, 1, math.inf),), prompts=64, for_any=True)
    return seen


MEASURED_WITH = (
    "model.path",
    "model.revision",
    "model.warm_start",
    "model.dtype",
    "model.head_dtype",
    "model.compile",
    "model.lora.rank",
    "model.lora.alpha",
    "model.lora.target_modules",
    "model.lora.sent",
    "data.path",
    "data.prompts",
    "data.sets.name",
    "data.sets.path",
    "data.sets.weight",
    "data.held_out",
    "reward.rows",
    "reward.kind",
    "reward.function",
    "reward.model",
    "reward.prompt",
    "reward.scale",
    "reward.verdicts",
    "reward.packages",
    "reward.partial",
    "data.chat_template_kwargs",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.top_k",
    "rollout.min_p",
    "rollout.stop",
    "rollout.stop_token_ids",
    "engine.kv_cache_dtype",
    "engine.max_num_batched_tokens",
    "engine.gpu_memory_utilization",
)
"""Keys of a job that make a plan stale even if the solver does not read them: profile and length trace were measured
with them, and with other values both would be of another job."""


@pytest.mark.parametrize(
    ("kind", "model", "measured", "sections"),
    [("job", Job, set(MEASURED_WITH), SECTIONS), ("cluster", Cluster, set(), ())],
)
def test_the_solver_reads_all_keys_but_those_that_decide_nothing(kind, model, measured, sections, read):
    found = {path: (owner, key) for path, owner, key in leaves(model) if path != f"rlplan_{kind}"}
    assert set(UNREAD[kind]) | measured <= {*found, *sections}, "keys that are no more"
    within = tuple(f"{section}." for section in sections)
    unread = {path for path in found if path in UNREAD[kind] or path.startswith(within)}
    assert unread and not {path for path in unread if found[path] in read}, "said to decide nothing"
    rest = set(found) - unread - measured
    assert sorted(path for path in rest if found[path] not in read) == [], "nothing reads it: say so in UNREAD"


def with_value(value: Any, path: list[str], new: Any) -> Any:
    key, *rest = path
    if isinstance(value, list):
        return [with_value(part, path, new) if key in part else part for part in value]
    key = next(iter(value)) if key == "*" else key
    return {**value, key: with_value(value[key], rest, new) if rest else new}


PARTS = [
    {"kind": "math", "workers": 1, "deadline_s": 2.0, "memory_bytes": 1 << 30, "weight": 0.5, "environment": ["A"]},
    {"kind": "code", "deadline_s": 2.0, "sandbox": "optional"},
    {"kind": "format", "pattern": "<a>.*", "deadline_s": 2.0},
    {"kind": "length", "target_tokens": 100, "per_token": 0.1},
    {"kind": "overlong", "cache_tokens": 10, "max_tokens": 60},
]

# What the algorithm's name would set is stated, so that the name alone changes.
GRPO = {**KL, "loss_aggregation": "seq-mean-token-mean"}

CHANGES: dict[str, tuple[BaseModel, dict[str, Any]]] = {
    "job": (
        small_job(reward=PARTS, algorithm=GRPO),
        {
            "data.seed": 7, "rollout.seed_per_sample": True, "reward.weight": 0.25, "reward.pattern": "<b>.*",
            "reward.target_tokens": 90, "reward.per_token": 0.2, "reward.cache_tokens": 20, "reward.max_tokens": 50,
            "reward.retries": 9, "reward.memory_bytes": 2 << 30,
            "reward.environment": ["B"], "reward.sandbox": "required", "logprob_limits": {"mean": 0.5},
            "algorithm.name": "rloo", "algorithm.learning_rate": 0.5,
            "algorithm.schedule": {"kind": "linear", "warmup_steps": 3, "decay_steps": 50},
            "algorithm.weight_decay": 0.1, "algorithm.betas": [0.8, 0.9], "algorithm.max_grad_norm": 3.0,
            "algorithm.clip_low": 0.1, "algorithm.clip_high": 0.28, "algorithm.dual_clip": 3.0,
            "algorithm.entropy_bonus": 0.01,
            "algorithm.kl.coefficient": 0.1, "algorithm.kl.estimator": "k2", "algorithm.kl.applied_to": "loss",
            "algorithm.importance_sampling": {"cap": 3.0}, "algorithm.seed": 4,
            "evaluate": {"data": "held_out.jsonl", "every_steps": 5},
        },
    ),
    "cluster": (laptop(), {"name": "other", "pools.*.slots": 2}),
    "profile": (
        small_profile(),
        {
            "note": "new", "outliers": ["x"], "volatile": None,
            "reward_audit": {"rows": 2, "of": 2, "references": 2, "full": 1, "wrong": 6, "paid": 0, "refused": 0},
        },
    ),
}  # fmt: skip


READ: dict[str, dict[str, Any]] = {
    "job": {
        "data.chat_template_kwargs": {"enable_thinking": False}, "rollout.temperature": 0.7,
        "engine": {"max_num_batched_tokens": 2048}, "rollout.top_p": 0.9, "rollout.stop": ["</a>"],
        "search.tp": [1], "algorithm.mask_truncated": True,
        "algorithm.loss_aggregation": "token-mean",
    },
    "cluster": {
        "pools.*.nodes": 2, "pools.*.usd_per_node_hour": 9.0,
        "links": [{"pools": ["main", "main"], "stream_bytes_per_s": 1e9}],
    },
    "profile": {"model_parameters": 7, "reward.per_sample_s": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_a_digest_changes_with_keys_that_the_solver_reads_alone(kind):
    document, unread = CHANGES[kind]
    assert set(unread) == set(UNREAD[kind])
    value, before = document.model_dump(mode="json"), digest_of(kind, dump(document))
    for path, new in {**unread, **READ[kind]}.items():
        changed = type(document).model_validate(with_value(value, path.split("."), new))
        assert changed != document, path
        assert (digest_of(kind, dump(changed)) == before) == (path in unread), path


def test_an_algorithm_that_needs_mode_sync_is_in_the_digest():
    jobs = [small_job(algorithm={**GRPO, "name": name}) for name in ("grpo", "gspo", "reinforce_plus_plus_baseline")]
    grpo, gspo, whole = (digest_of("job", dump(job)) for job in jobs)
    assert grpo == gspo != whole


def test_comments_order_and_written_defaults_change_no_digest():
    text = dump(small_job())
    before = digest_of("job", text)
    name = "name: toy\n"
    assert digest_of("job", "# ours\n" + text.replace(name, "", 1).replace("slo:", "# limits\nslo:") + name) == before
    assert digest_of("job", dump(small_job(slo={"step_p95_s": None}))) == before
    # Of before the solver read any network: without one it is as it was.
    cluster = Path(__file__).parents[2] / "plans" / "examples" / "math-32b" / "cluster.yaml"
    assert digest_of("cluster", cluster.read_text()) == "a973dcc64a685527"
