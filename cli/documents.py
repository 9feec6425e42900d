"""The kinds of document, and their models."""

from __future__ import annotations

import importlib
from pathlib import Path

from pydantic import BaseModel

from ..plans.errors import InputError

_MODELS = {
    "cluster": "plans.cluster:Cluster",
    "job": "plans.job:Job",
    "profile": "profiles.schema:Profile",
    "plan": "plans.plan:Plan",
    "workload": "plans.workload:Workload",
    "groups": "plans.groups_plan:GroupsPlan",
    "policy": "plans.policy:Policy",
}

KINDS = tuple(_MODELS)
"""Names of the kinds of document; each is marked by the key `rlplan_NAME`, a plan by `rlplan`."""


def model_of(kind: str) -> type[BaseModel]:
    """The model of a kind of document."""
    module, _, name = _MODELS[kind].partition(":")
    model: type[BaseModel] = getattr(importlib.import_module(f"...{module}", __name__), name)
    return model


def kind_of(path: str | Path) -> str:
    """The kind of the document at `path`, by its mark. Raises InputError when it has none that we know."""
    from ..plans.groups_plan import document_kind

    mark = document_kind(path)
    kind = (mark or "").removeprefix("rlplan").removeprefix("_") or ("plan" if mark else "")
    if kind not in _MODELS:
        marks = ", ".join("rlplan" if name == "plan" else f"rlplan_{name}" for name in KINDS)
        raise InputError(f"is none of our documents: none of the keys {marks} is at its top", str(path))
    return kind
