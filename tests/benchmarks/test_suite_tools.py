"""benchmarks.suite: which faults are drawn and who catches them, which tests a change concerns, what a run took."""

import json

import pytest

from benchmarks.suite import __main__ as figures
from benchmarks.suite.changed import concerned, distances, import_graph
from benchmarks.suite.mutants import caught_by, draw, mutations, room_tests
from rlplan.plans.yaml.errors import InputError

SOURCE = '''\
import os
def clipped(values: list[int], most: int = 3) -> int:
    """Two more than `most`."""
    if not values or most < 0:
        raise ValueError(f"{most + 1}")
    total = max(most, len(values)) - 2
    values.sort()
    return total
'''
CHANGED = {
    2: ["off by one"],
    4: ["and/or", "outcome", "comparison", "off by one"],
    5: ["dropped"],
    6: ["sign", "swapped arguments", "off by one"],
    7: ["dropped"],
}
"""The kinds of fault of each line; annotations, imports and texts have none."""


def test_each_line_has_its_kinds_of_fault_and_differs_in_nothing_else():
    assert not mutations("plans/b.py", "f(x, x)").get(1, [])[1:], "equal arguments, swapped, are no fault"
    found = mutations("plans/a.py", SOURCE)
    assert {line: [each.kind for each in found[line]] for line in sorted(found)} == CHANGED
    for line, faults in found.items():
        for fault in faults:
            was, now = SOURCE.splitlines(), fault.text.splitlines()
            assert [number for number, pair in enumerate(zip(was, now, strict=True), 1) if pair[0] != pair[1]] == [line]
    assert found[4][2].text.splitlines()[3].strip() == "if not values or (most <= 0):"


def test_a_draw_is_of_its_seed_and_keeps_lines_when_others_change():
    sources = {"plans/a.py": SOURCE, "rounds/b.py": SOURCE.replace("most", "least")}
    drawn = draw(sources, 6, 1)
    assert [(each.path, each.line, each.kind) for each in drawn] == [
        (each.path, each.line, each.kind) for each in draw(sources, 6, 1)
    ]
    assert [each.path for each in drawn] == ["plans/a.py"] * 3 + ["rounds/b.py"] * 3, "by the rooms' lines"
    assert [each.line for each in drawn] != [each.line for each in draw(sources, 6, 2)]
    longer = {**sources, "plans/a.py": '"""A module."""\n\n' + SOURCE}
    assert [each.line - 2 for each in draw(longer, 6, 1)[:3]] == [each.line for each in drawn[:3]]
    with pytest.raises(ValueError, match="plans: 5 lines can be changed, 6 are wanted"):
        draw(sources, 12, 1)


@pytest.fixture
def tree(tmp_path):
    """A tree in which plans/a.py has an importer, and tests in its mirror and elsewhere; and its import graph."""
    texts = {
        "plans/a.py": "LIMIT = 3\n",
        "plans/b.py": "from .a import LIMIT\n",
        "planner/c.py": "from rlplan.plans import b\n",
        "tests/conftest.py": "",
        "tests/helper.py": "",
        "tests/plans/test_a.py": "from rlplan.plans.a import LIMIT\ndef test_limit():\n    assert LIMIT == 3\n",
        "tests/plans/test_b.py": "from rlplan.plans.b import LIMIT\ndef test_passes():\n    pass\n",
        "tests/planner/test_c.py": "from rlplan.planner import c\nfrom ..helper import x\n",
        "tests/planner/test_d.py": "from rlplan.plans.a import LIMIT\n",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path, import_graph(tmp_path, sorted(texts))


def test_a_change_concerns_its_mirror_and_the_tests_that_import_it(tree):
    _, graph = tree
    assert distances(graph, "plans/a.py")["planner/c.py"] == 2
    assert concerned(["plans/a.py"], graph) == [
        "tests/planner/test_d.py",
        "tests/plans/test_a.py",
        "tests/plans/test_b.py",
    ]
    assert concerned(["tests/helper.py"], graph) == ["tests/planner/test_c.py"]
    assert concerned(["tests/plans/test_b.py", "tests/plans/test_gone.py"], graph) == ["tests/plans/test_b.py"]
    assert len(concerned(["Makefile"], graph)) == len(concerned(["tests/conftest.py"], graph)) == 4
    assert concerned(["tests/plans/golden/a.txt"], graph) == concerned(["plans/page/a.html.j2"], graph)
    assert concerned(["plans/page/a.html.j2"], graph) == ["tests/plans/test_a.py", "tests/plans/test_b.py"]
    assert concerned(["LICENSE"], graph) == []


def test_the_nearest_tests_of_a_room_run_first_and_one_catches(tree):
    top, graph = tree
    tests = room_tests(graph, "plans/a.py")
    assert tests == ["tests/plans/test_a.py", "tests/plans/test_b.py"]
    assert room_tests(graph, "plans/b.py") == ["tests/plans/test_b.py", "tests/plans/test_a.py"]
    (top / "rlplan").symlink_to(top)
    assert caught_by(top / "rlplan", tests, "not engine") is None
    (top / "plans" / "a.py").write_text("LIMIT = 40\n")  # of another size: bytecode of this very second is stale
    assert caught_by(top / "rlplan", tests, "not engine") == "tests/plans/test_a.py::test_limit"


REPORT = """<testsuites><testsuite tests="{tests}" skipped="1" failures="{failures}" errors="0" time="{time}">
<properties><property name="engine_starts" value="{starts}"/></properties></testsuite></testsuites>"""


def test_the_figures_of_a_run_are_the_sums_of_its_parts(tmp_path, monkeypatch, capsys):
    with pytest.raises(InputError, match="no tests ran here; run make test first"):
        figures.suite_figures(tmp_path)
    parts = {"pure": (101, 0, 60.0, 0), "search": (3, 1, 9.5, 0), "walk": (6, 0, 30.0, 4), "engines": (21, 0, 90.0, 7)}
    for name, (tests, failures, time, starts) in parts.items():
        report = REPORT.format(tests=tests, failures=failures, time=time, starts=starts)
        (tmp_path / f"{name}.xml").write_text(report)
    monkeypatch.setattr(figures.suite_figures, "__defaults__", (tmp_path,))
    figures.main(["--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert (told["pure_tests"], told["pure_s"], told["engine_tests"], told["engine_s"]) == (102, 69.5, 25, 120.0)
    assert (told["engine_starts"], told["failed"], told["parts"]["walk"]) == (11, 1, {"tests": 5, "seconds": 30.0})
    assert told["test_lines"] > 10_000
    (tmp_path / "walk.begun").touch()
    assert figures.suite_figures(tmp_path)["failed"] == 1
    (tmp_path / "walk.xml").unlink()
    with pytest.raises(InputError, match="the part walk began and left no report"):
        figures.suite_figures(tmp_path)
    (tmp_path / "walk.begun").unlink()
    (tmp_path / "pure.xml").write_text("<half")
    with pytest.raises(InputError, match="is no report of pytest"):
        figures.suite_figures(tmp_path)
