"""Whatever a plan or an input of it is changed to, `check` says so at a line that exists and raises nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.plans.check.annotations import annotation
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_write import write

from .edits import GONE, check

ODD: list[Any] = [
    None, True, 0, -1, 1, 3, 64, 10**12, 10**30, 10**399, 0.0, 0.5, -0.5, 5e-324, 1e9, 1.7e308, "", "x", "main",
    "exact", "a: b", "\0", "~nobody/x", "../" * 50, "a" * 5000, "%s {y}", "1e999 s", "0" * 64, "cluster.yaml", ".",
    [], [None], [0, 0], [10**12], {}, {"a": 1}, GONE,
]  # fmt: skip


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, item in items for place in [(*at, key), *places(item, (*at, key))]]


@pytest.mark.parametrize("which", ["laptop", "groups"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mutation_raises_and_every_line_exists(which, data, solved_once):
    names = {
        "laptop": ["plan.yaml", "job.yaml", "cluster.yaml", "profile.yaml"],
        "groups": ["plan.yaml", "workload.yaml"],
    }
    name = data.draw(st.sampled_from(names[which]))
    folder = solved_once[which]
    file, whole = folder / name, (folder / name).read_text()
    tree = copy.deepcopy(parse(whole, str(file)).value)
    place = data.draw(st.sampled_from(places(tree)))
    parent = tree
    for key in place[:-1]:
        parent = parent[key]
    old, new = parent[place[-1]], data.draw(st.sampled_from(ODD))
    if new is GONE:
        del parent[place[-1]]
    else:
        # A number of the same type gets past the schema, to the rules behind it.
        scale = data.draw(st.sampled_from([None, 2, 1000]))
        parent[place[-1]] = old * scale if scale and type(old) in (int, float) else new
    text = write(tree)
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(1, len(text)))]
    try:
        file.write_text(text)
        for path in {file, folder / "plan.yaml"}:
            count = path.read_text().count("\n") + 1
            for finding in check(path).findings:
                assert finding.line is None or 1 <= finding.line <= count
                assert "\n" not in finding.text + finding.key + annotation(finding)
    finally:
        file.write_text(whole)
