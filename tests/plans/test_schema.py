"""The schemas as documentation: descriptions, the shipped JSON Schema, and keys that something reads."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import rlplan
from rlplan.cli.shared.documents import KINDS, model_of
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.site_rules import SiteRules
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.editor_schemas import SHIPPED, place_schema, schema_of

DOCUMENTS: tuple[type[BaseModel], ...] = (Cluster, Job, Plan, Workload, GroupsPlan, SiteRules)
PLAN_SCHEMA = SHIPPED / "plan.schema.json"
ROOT = Path(rlplan.__file__).parent
ROOMS = ("cli", "executor", "planner", "plans", "profiles", "rounds")
SCHEMA_MODULES = tuple(
    f"{name}.py"
    for name in (
        "algorithm",
        "base",
        "cluster",
        "data_spec",
        "groups_plan",
        "job",
        "levers",
        "origin",
        "policy",
        "plan",
        "planned_group",
        "predicted",
        "workload",
    )
)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The model classes that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def all_models() -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    queue = list(DOCUMENTS)
    while queue:
        model = queue.pop(0)
        if model in found:
            continue
        found.append(model)
        for field in model.model_fields.values():
            queue.extend(models_in(field.annotation))
    return found


def test_every_field_has_a_description() -> None:
    bare = [f"{m.__name__}.{k}" for m in all_models() for k, f in m.model_fields.items() if not f.description]
    assert bare == []


def test_every_model_has_a_docstring_refuses_unknown_keys_and_is_frozen() -> None:
    for model in all_models():
        assert model.__doc__, model
        assert model.model_config.get("extra") == "forbid", model
        assert model.model_config.get("frozen") is True, model


def test_every_duration_memory_and_length_is_a_number_with_its_unit_in_its_name() -> None:
    """`timeout`, `memory`, `length` without a unit is how wrong units come about."""
    for model in all_models():
        for name, field in model.model_fields.items():
            for stem, suffix in (("deadline", "_s"), ("timeout", "_s"), ("memory", "_bytes"), ("cutoff", "_tokens")):
                if stem in name and not any(models_in(field.annotation)):
                    assert name.endswith(suffix), f"{model.__name__}.{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_json_schema_is_current(kind: str) -> None:
    shipped = (SHIPPED / f"{kind}.schema.json").read_text(encoding="utf-8")
    assert shipped == schema_of(model_of(kind)), "run: rlplan schema --out plans/schemas"


def test_only_schemas_of_documents_ship() -> None:
    assert sorted(path.name for path in SHIPPED.iterdir()) == sorted(f"{kind}.schema.json" for kind in KINDS)


def test_the_schema_that_a_written_document_names_lies_beside_it_and_is_ignored_by_git(tmp_path: Path) -> None:
    place_schema(tmp_path, "cluster")
    assert (tmp_path / ".rlplan" / "cluster.schema.json").read_text() == schema_of(Cluster)
    assert (tmp_path / ".rlplan" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_takes_no_schema_is_a_warning_and_no_error(tmp_path: Path) -> None:
    (tmp_path / ".rlplan").write_text("in the way")
    with pytest.warns(UserWarning, match="schema for editors"):
        place_schema(tmp_path, "cluster")


def test_the_shipped_json_schema_takes_a_plan_and_refuses_an_unknown_key(folder: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="comes with the cpu extra")
    import json

    validator = jsonschema.Draft202012Validator(json.loads(PLAN_SCHEMA.read_text(encoding="utf-8")))
    plan = yaml.safe_load(folder.path("plan.yaml").read_text())
    assert list(validator.iter_errors(plan)) == []
    plan["job"]["rounds"]["short"]["rollout"]["tpp"] = 2
    assert len(list(validator.iter_errors(plan))) == 1


def names_read(source: str) -> set[str]:
    """Names that code reads as attribute, string subscript, `.get("…")`/`getattr(…, "…")`, or in a match pattern."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            names.add(str(node.slice.value))
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("get", "getattr", "attrgetter", "pop"):
                names.update(a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
        elif isinstance(node, ast.MatchClass):
            names.update(node.kwd_attrs)
    return names


def test_the_scan_sees_reads_and_no_writes() -> None:
    seen = names_read("a.b.c = d['e']; f.get('g', 1); getattr(h, 'i'); j = 'k'; l(m=1)")
    assert seen == {"b", "e", "get", "g", "i"}


def test_every_declared_key_is_read_by_something() -> None:
    """A key that nothing reads is a promise that nothing keeps. The formats' version marks are read by the loader."""
    read: set[str] = set()
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if not (room == "plans" and file.name in SCHEMA_MODULES):
                read |= names_read(file.read_text(encoding="utf-8"))
    declared = {(m.__name__, k) for m in all_models() for k in m.model_fields if not k.startswith("rlplan")}
    unread = sorted(f"{model}.{key}" for model, key in declared if key not in read)
    assert unread == []
