"""The screen of any plan of one job: drawn whatever its figures are, and nothing in it acts on the terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rlplan.cli.screens.job_screen import data, render

from ..plans.strategies import plans, relaxed


@relaxed
@given(plans(), st.sampled_from([40, 80, 100, 120]))
def test_any_plan_is_drawn_and_nothing_in_it_acts_on_the_terminal(plan, width):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(render(plan, "plan.yaml", [], width))
    text = out.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert plan.job.name in text.replace("\n", "")
    kinds = 1 if plan.job.rounds.long is None else 2
    assert text.count("trainers  ") >= kinds


@relaxed
@given(plans())
def test_the_data_of_any_plan_is_its_figures(tmp_path_factory, plan):
    path = tmp_path_factory.getbasetemp() / "plan.yaml"
    found = data(plan, path)
    assert found["critical_path"]["total_s"] == pytest.approx(sum(found["predicted"]["phases_s"].values()))
    assert found["why"] == plan.job.why
