"""The schemas as documentation: descriptions, the shipped JSON Schema, and keys that something reads."""

import ast
import json
from pathlib import Path

import pytest
import yaml

import rlplan
from rlplan.cli.schema import KINDS, model_of
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.site_rules import SiteRules
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.yaml_io import SHIPPED, place_schema, schema_of

from .conftest import PLAN_TEXT, models_below, models_in

MODELS = models_below(Cluster, Job, Plan, Workload, GroupsPlan, SiteRules)
ROOT = Path(rlplan.__file__).parent
ROOMS = ("api", "cli", "executor", "frameworks", "planner", "plans", "profiles", "rounds")
SCHEMA_MODULES = {
    "algorithm", "base", "cluster", "data_spec", "groups_plan", "job", "levers", "origin", "policy", "plan",
    "planned_group", "predicted", "workload",
}  # fmt: skip
UNITS = {"deadline": "_s", "timeout": "_s", "memory": ("_bytes", "_utilization"), "cutoff": "_tokens"}
"""By a word of a name: how it ends; `gpu_memory_utilization` is vLLM's, a share."""


def test_every_model_is_described_strict_and_frozen_with_units_in_its_names():
    """`timeout`, `memory`, `length` without a unit is how wrong units come about."""
    assert len(MODELS) > 30
    for model in MODELS:
        assert model.__doc__ and model.model_config["extra"] == "forbid" and model.model_config["frozen"], model
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            units = [unit for stem, unit in UNITS.items() if stem in name and not any(models_in(field.annotation))]
            assert all(name.endswith(unit) for unit in units), f"{model.__name__}.{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_json_schema_is_current(kind):
    shipped = (SHIPPED / f"{kind}.schema.json").read_text(encoding="utf-8")
    assert shipped == schema_of(model_of(kind)), "run: rlplan schema --out plans/schemas"


def test_only_schemas_of_documents_ship():
    assert sorted(path.name for path in SHIPPED.iterdir()) == sorted(f"{kind}.schema.json" for kind in KINDS)


def test_a_written_document_has_its_schema_beside_it_ignored_by_git(tmp_path):
    place_schema(tmp_path, "cluster")
    assert (tmp_path / ".rlplan" / "cluster.schema.json").read_text() == schema_of(Cluster)
    assert (tmp_path / ".rlplan" / ".gitignore").read_text() == "*\n"
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / ".rlplan").write_text("in the way")
    with pytest.warns(UserWarning, match="schema for editors"):
        place_schema(tmp_path / "file", "cluster")


def test_the_shipped_json_schema_refuses_an_unknown_key():
    jsonschema = pytest.importorskip("jsonschema", reason="comes with the cpu extra")
    schema = (SHIPPED / "plan.schema.json").read_text(encoding="utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(schema))
    plan = yaml.safe_load(PLAN_TEXT)
    assert list(validator.iter_errors(plan)) == []
    plan["job"]["rounds"]["short"]["rollout"]["tpp"] = 2
    assert len(list(validator.iter_errors(plan))) == 1


def names_read(source):
    """Names that code reads as attribute, string subscript, `.get("…")`/`getattr(…, "…")`, or in a match pattern."""
    names = set()
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


def properties(source):
    """The properties of a module's classes, as code: what a model says of its own keys."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return "\n".join(
        ast.unparse(function.body)
        for function in functions
        if any(getattr(each, "id", "") == "property" for each in function.decorator_list)
    )


def test_every_declared_key_is_read_by_something():
    """A key that nothing reads is a promise that nothing keeps. The formats' version marks are read by the loader."""
    assert names_read("a.b.c = d['e']; f.get('g', 1); getattr(h, 'i'); j = 'k'; l(m=1)") == {"b", "e", "get", "g", "i"}
    read = set()
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            read |= names_read(properties(text) if room == "plans" and file.stem in SCHEMA_MODULES else text)
    by_name = ast.walk(ast.parse((ROOT / "plans/check/site_breaches.py").read_text(encoding="utf-8")))
    read |= {
        node.value for node in by_name if isinstance(node, ast.Constant)
    }  # limits of the policy: getattr(rules, key)
    declared = {(m.__name__, k) for m in MODELS for k in m.model_fields if not k.startswith("rlplan")}
    assert sorted(f"{model}.{key}" for model, key in declared if key not in read) == []
