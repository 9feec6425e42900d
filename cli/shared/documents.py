"""The kinds of document, the key that marks each kind, and the models."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from ...plans.yaml.errors import InputError

KINDS = ("cluster", "job", "profile", "plan", "workload", "groups", "policy")
"""Names of the kinds of document."""


def mark_of(kind: str) -> str:
    """The key at the top of a document that states its kind."""
    return "rlplan" if kind == "plan" else f"rlplan_{kind}"


def model_of(kind: str) -> type[BaseModel]:
    """The model of a kind of document."""
    from ...profiles.document_models import ALL_MODELS

    return ALL_MODELS[mark_of(kind)]


def kind_of(path: str | Path) -> str:
    """The kind of the document at `path`, by its mark. Raises InputError if it has no known mark."""
    from ...plans.yaml.yaml_io import document_kind, kind_of_mark

    mark = document_kind(path)
    kind = kind_of_mark(mark) if mark else ""
    if kind not in KINDS:
        marks = ", ".join(map(mark_of, KINDS))
        raise InputError(f"is not an rlplan document: it has none of the keys {marks} at its top", str(path))
    return kind
