"""Edits of a plan's folder by dotted keys, after which digests fit again unless they are what is edited."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlplan.planner.check.checker import Checker, FileReport
from rlplan.plans.check.any_document import read_document
from rlplan.plans.check.solved_rules import decisions_of, predictions_of
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_io import write

NOW = datetime(2026, 1, 12, tzinfo=UTC)
"""Ten days after the laptop's profile was measured."""

GONE = object()


def at(tree: Any, dotted: str) -> tuple[Any, Any]:
    """(the mapping or list that holds the value, its key there); `*`: the first key."""
    parent, key = None, None
    for part in dotted.split("."):
        parent = tree if key is None else parent[key]
        key = next(iter(parent)) if part == "*" else int(part) if isinstance(parent, list) else part
    return parent, key


def edit(path: Path, changes: Mapping[str, Any]) -> None:
    """Set values by dotted keys; a function is given the old value, GONE removes it."""
    tree = parse(path.read_text(), str(path)).value
    for dotted, new in changes.items():
        parent, key = at(tree, dotted)
        if new is GONE:
            del parent[key]
        else:
            parent[key] = new(parent[key]) if callable(new) else new
    path.write_text(json.dumps(tree) if path.suffix == ".json" else write(tree))


def resign(folder: Path) -> None:
    """Give the plan the digests of its inputs, decisions and predictions as they are now."""
    plan = folder / "plan.yaml"
    tree = parse(plan.read_text(), str(plan)).value
    for file in tree["inputs"].values():
        if file and "path" in file and (folder / file["path"]).is_file():
            file["sha256"] = hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest()
    plan.write_text(write(tree))
    value: Any = read_document(str(plan)).value
    if value is not None:
        tree["decisions_sha256"] = decisions_of(value)
        tree["predicted_sha256"] = predictions_of(value)
        plan.write_text(write(tree))


def check(path: Path, **options: Any) -> FileReport:
    return Checker(NOW, **options).check_file(str(path))


def rules(report: FileReport) -> set[str]:
    return {finding.rule for finding in report.findings}
