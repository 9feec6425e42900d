"""`rlplan show --html` on a shipped plan: what its page says that is not in the plan."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import rlplan as package

from .command_line import rlplan

EXAMPLES = Path(package.__file__).parent / "plans" / "examples"


@pytest.mark.parametrize(("name", "given"), [("cpu-demo", "cluster.yaml"), ("groups", "workload.yaml")])
def test_the_page_of_a_plan_whose_inputs_have_changed_says_that_it_is_stale(name, given, tmp_path):
    shutil.copy(EXAMPLES / f"{name}.yaml", tmp_path)
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    page = tmp_path / "page.html"
    for changed in (False, True):
        if changed:
            file = tmp_path / name / given
            file.write_text(re.sub(r"(usd_per_node_hour|slo): ([0-9.]+)", r"\1: \g<2>1", file.read_text()))
        assert rlplan("show", tmp_path / f"{name}.yaml", "--html", page).returncode == 0
        assert (f"Solved from another {name}/{given}; solve again" in page.read_text()) is changed
