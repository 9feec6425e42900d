"""One wording of what the solver proved: on the screen, on the page and in the lines of `solve`."""

import pytest

from rlplan.plans.phrases.solver_status import solver_status
from rlplan.plans.schema.sections.origin import Solver


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "optimal"),
        ({"given_up": 0.013}, "tied with the best (+1.3%)"),
        ({"status": "feasible", "gap": 0.02}, "best found (not proven)"),
        ({"status": "feasible", "gap": 0.02, "given_up": 0.013}, "tied with the best found (+1.3%, not proven)"),
        ({"status": "feasible", "refreshed": True}, "edited by hand and refreshed"),
    ],
)
def test_the_status_of_a_plan_is_worded(changes, text):
    solver = {"name": "HiGHS", "status": "optimal", "gap": 0.0, "bound": 1.0, "reached": 1.0, "candidates": 10}
    assert solver_status(Solver(**solver | {"objective": "seconds_per_sample"} | changes)) == text
