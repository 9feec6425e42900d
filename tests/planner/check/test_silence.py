"""What `solve` wrote has no finding; whatever it is changed to, `check` raises nothing."""

import copy
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.plans.check.finding import annotation
from rlplan.plans.yaml.yaml_doc import parse
from rlplan.plans.yaml.yaml_io import write

from .conftest import run
from .edits import GONE, Checker, check

ODD: list[Any] = [
    None, True, 0, -1, 1, 3, 64, 10**12, 10**30, 10**399, 0.0, 0.5, -0.5, 5e-324, 1e9, 1.7e308, "", "x", "main",
    "exact", "a: b", "\0", "~nobody/x", "../" * 50, "a" * 5000, "%s {y}", "1e999 s", "0" * 64, "cluster.yaml", ".",
    [], [None], [0, 0], [10**12], {}, {"a": 1}, GONE,
]  # fmt: skip


EXAMPLES = Path(__file__).resolve().parents[3] / "plans" / "examples"


def told(path: Path) -> list[str]:
    report = Checker(datetime.now(UTC)).check_file(str(path))
    return [f"{finding.rule}: {finding.text}" for finding in report.findings]


@pytest.mark.parametrize(
    ("which", "options"),
    [
        *(("laptop", ["--mode", mode]) for mode in ("sync", "race", "defer", "predict")),
        ("gpus", ["--mode", "race"]),
        *((which, ["--objective", "usd"]) for which in ("laptop", "gpus")),
    ],
)
def test_plans_of_every_mode_and_objective_have_no_finding(which, options, solved):
    folder = solved(which)
    run("solve", folder, *options, "--trace", folder / "lengths.jsonl", "-o", folder / "new.yaml")
    assert told(folder / "new.yaml") == []


@pytest.mark.parametrize("objective", ["usd_per_hour", "usd_per_unit"])
@pytest.mark.parametrize("which", ["small", pytest.param("shipped", marks=pytest.mark.search)])
def test_plans_of_groups_and_their_re_solve_have_no_finding(which, objective, solved, tmp_path):
    shipped = which == "shipped"
    folder = Path(shutil.copytree(EXAMPLES / "groups", tmp_path / "groups")) if shipped else solved("groups")
    out, again = folder / "new.yaml", folder / "again.yaml"
    run("solve", folder / "workload.yaml", "--objective", objective, "-o", out)
    run("solve", folder / "workload.yaml", "--objective", objective, "--from", out, "-o", again)
    assert told(out) == [] and told(again) == []


@pytest.mark.parametrize("which", ["laptop", "gpus", "groups"])
def test_the_documents_of_a_plan_have_no_finding(which, solved_once):
    for file in sorted(solved_once(which).glob("*.yaml")):
        assert told(file) == [], file.name


@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.relative_to(EXAMPLES).as_posix()
)
def test_the_shipped_examples_have_no_finding(file):
    assert told(file) == []


# -- mutations ---------------------------------------------------------------------------------------------------------


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, item in items for place in [(*at, key), *places(item, (*at, key))]]


@pytest.mark.parametrize("which", ["laptop", "groups"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mutation_raises_and_every_line_exists(which, data, solved_once):
    inputs = ["job.yaml", "cluster.yaml", "profile.yaml"] if which == "laptop" else ["workload.yaml"]
    name = data.draw(st.sampled_from(["plan.yaml", *inputs]))
    folder = solved_once(which)
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
