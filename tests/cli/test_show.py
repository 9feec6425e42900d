"""`rlplan show` of a plan of one job; plans of groups are in test_groups.py."""

import json

from .command_line import refused, rlplan
from .solved_folder import edit


def test_a_plan_of_one_job_is_summed_up_also_when_its_inputs_have_changed(solved):
    edit(solved / "job.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    result = rlplan("show", solved / "plan.yaml")
    assert result.returncode == 0, result.stderr
    for word in ("sync: ", "s a step", "short rounds", "why:"):
        assert word in result.stdout
    summary = json.loads(rlplan("show", solved / "plan.yaml", "--json").stdout)
    assert summary["mode"] == "sync" and summary["speedup"] > 0


def test_what_is_no_plan_or_has_no_groups_to_draw_is_refused(solved):
    refused(rlplan("show", solved / "job.yaml"), "job.yaml:1", "'rlplan' is needed")
    refused(rlplan("show", solved / "none.yaml"), "no such file")
    refused(rlplan("show", solved / "plan.yaml", "--timeline", solved / "t.json"), "rlplan simulate --timeline")
    assert not (solved / "t.json").exists()
