"""What of a plan's input files the solver reads, as a digest: only a change of that makes a plan stale.

A learning rate changes a run and no plan: whoever tunes it need not solve again. So beside the digest of each file's
bytes a plan has one of its values, without those that the solver does not read (`UNREAD`). While that one still fits,
a change of the file is told and nothing is refused.

The digest covers values and no text: comments, the order of keys and keys that a job states though they are the
default are not in it. Of a profile it covers the values as they stand in the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..schema.cluster import Cluster
from ..schema.job import Job
from ..schema.sections.origin import Digest64, SolverRead
from ..yaml.yaml_doc import parse
from ..yaml.yaml_io import loads, read_text

Kind = Literal["cluster", "job", "profile"]

UNREAD: Mapping[Kind, tuple[str, ...]] = {
    "cluster": ("name", "links", "pools.*.slots"),
    "job": (
        "data.seed",
        "reward.retries",
        "reward.memory_bytes",
        "rollout.seed_per_sample",
        "algorithm.name",
        "algorithm.learning_rate",
        "algorithm.weight_decay",
        "algorithm.betas",
        "algorithm.max_grad_norm",
        "algorithm.clip_low",
        "algorithm.clip_high",
        "algorithm.loss_aggregation",
        "algorithm.importance_sampling",
        "algorithm.seed",
    ),
    "profile": ("note", "outliers", "volatile"),
}
"""Dotted keys that decide nothing in a plan; `*` is any key. Links and slots are for workloads. What an algorithm's
name sets (`dynamic_sampling`, `mask_truncated`) is read by its own key."""

DRAWN_UNDER: tuple[str, ...] = (
    "model.path",
    "model.dtype",
    "data.path",
    "data.prompts",
    "reward.kind",
    "reward.function",
    "rollout.temperature",
)
"""Keys of a job that the solver may not look at, and that make a plan stale all the same: profile and length trace
were drawn under them, so that under others both are of another job."""


def solver_read(cluster_path: str | Path, job_path: str | Path, profile_path: str | Path) -> SolverRead:
    """The digests of a plan's inputs. Raises InputError where one of the files is no document of its kind."""
    return SolverRead(
        cluster=read_digest("cluster", cluster_path),
        job=read_digest("job", job_path),
        profile=read_digest("profile", profile_path),
    )


def read_digest(kind: Kind, path: str | Path) -> Digest64:
    """Of the file at `path`. Raises InputError where it is no document of its kind."""
    return digest_of(kind, read_text(path), str(path))


def digest_of(kind: Kind, text: str, path: str = "<text>") -> Digest64:
    """Of a document's text; `path` is used in messages only. Raises InputError where it is no document of its kind."""
    if kind == "profile":
        value = parse(text, path).value  # its model is another room's; a plan is stale sooner for that, never later
    else:
        value = loads(text, Cluster if kind == "cluster" else Job, path).model_dump(mode="json")
    for key in UNREAD[kind]:
        _remove(value, key.split("."))
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _remove(value: Any, path: Sequence[str]) -> None:
    """Take a key out of a mapping, wherever a `*` of its path leads; what is not there is left so."""
    if not isinstance(value, dict):
        return
    key, *rest = path
    if not rest:
        value.pop(key, None)
        return
    for name in list(value) if key == "*" else [key]:
        _remove(value.get(name), rest)
