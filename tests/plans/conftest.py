"""A folder with a whole set of documents that agree with each other; tests break one thing in it."""

import copy
import functools
import hashlib
import re
import typing
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from rlplan.plans.check.plan_check import open_plan
from rlplan.plans.facts.digest import groups_decisions, job_decisions
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import loads

from ..documents import CLUSTER

HERE = Path(__file__).parent
JOB = (HERE / "job.yaml").read_text(encoding="utf-8")

PLAN = (HERE / "plan.yaml").read_text(encoding="utf-8")
"""Of an input NAME it has the digest NAME_SHA, of its decisions DECISIONS."""

PLAN_TEXT = re.sub(r"[A-Z]+_SHA", "a" * 64, PLAN)
PLAN_TEXT = PLAN_TEXT.replace("DECISIONS", job_decisions(loads(PLAN_TEXT.replace("DECISIONS", "a" * 64), Plan).job))
"""The plan as it was solved, of inputs that nobody looks at."""

GROUPS = (HERE / "groups.yaml").read_text(encoding="utf-8").replace("DECIDED", "b" * 64)
GROUPS = GROUPS.replace("b" * 64, groups_decisions(loads(GROUPS, GroupsPlan).groups))
"""A small plan of groups, of tests/workloads.py's jobs."""

GONE = "gone"

plain = functools.cache(yaml.safe_load)
"""The values of a text of YAML, which nobody may change (`with_values` copies)."""


def with_values(document, values, whole=None):
    """A copy of plain data with other values at dotted paths; GONE removes a key. A section that is absent is there as
    `whole` has it as soon as a key of it is."""
    document = copy.deepcopy(document)
    for path, value in values.items():
        *sections, key = path.split(".")
        at = document
        for section in sections:
            if isinstance(at, list):
                at = at[int(section)]
            else:
                if at.get(section) is None:
                    at[section] = copy.deepcopy((whole or {}).get(section, {}))
                at = at[section]
        if value == GONE:
            del at[key]
        elif isinstance(at, list):
            at[int(key) : int(key) + 1] = [copy.deepcopy(value)]
        else:
            at[key] = copy.deepcopy(value)
    return document


def models_in(annotation):
    """The models that an annotation names, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def models_below(*documents):
    """The models of documents and of all their sections, each once."""
    found = list(documents)
    for model in found:
        fields = model.model_fields.values()
        found += dict.fromkeys(each for field in fields for each in models_in(field.annotation) if each not in found)
    return found


def leaves(model, prefix=""):
    """Dotted paths of all keys below a model that are no sections themselves."""
    for name, field in model.model_fields.items():
        sections = list(models_in(field.annotation))
        for section in sections:
            yield from leaves(section, f"{prefix}{name}.")
        if not sections:
            yield prefix + name


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Folder:
    """Documents in a folder."""

    root: Path

    def path(self, name):
        return self.root / name

    def edit(self, name, old, new):
        """Replace the one occurrence of `old`; the line number where it begins. A changed input gets its new digest."""
        file = self.path(name)
        before = file.read_text()
        assert before.count(old) == 1, f"{old!r} occurs {before.count(old)} times in {name}"
        file.write_text(before.replace(old, new))
        plan = self.path("plan.yaml")
        plan.write_text(plan.read_text().replace(sha(before), sha(file.read_text())))
        return before[: before.index(old)].count("\n") + 1

    def change(self, name, values):
        """Other values at dotted paths (`with_values`)."""
        text = self.path(name).read_text()
        self.edit(name, text, yaml.safe_dump(with_values(yaml.safe_load(text), values), sort_keys=False))

    def check(self):
        """What a command does with a plan before it starts."""
        open_plan(self.path("plan.yaml"))


@pytest.fixture
def folder(tmp_path):
    files = {"cluster.yaml": CLUSTER, "job.yaml": JOB, "profile.yaml": "profile: 1\n", "lengths.jsonl": "{}\n"}
    plan = PLAN.replace("DECISIONS", loads(PLAN_TEXT, Plan).decisions_sha256)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        plan = plan.replace(name.split(".")[0].upper() + "_SHA", sha(text))
    (tmp_path / "plan.yaml").write_text(plan)
    rows = [f'{{"id": "b{k}", "prompt": "{k}+2", "answer": {k + 2}}}\n' for k in range(512)]
    (tmp_path / "data.jsonl").write_text("".join(rows))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"num_attention_heads": 4, "num_key_value_heads": 2}')
    return Folder(tmp_path)
