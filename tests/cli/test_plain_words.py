"""What `show`, `why` and `diff` say to somebody in a hurry: one word for one thing, and no riddles."""

from __future__ import annotations

import re

import pytest

from rlplan.cli.screens.groups_screen import groups_text
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.plan import load_plan

from ..group_documents import group, groups_plan, member
from ..planner.conftest import laptop
from ..planner.synthetic_run import QUICK
from ..planner.synthetic_run import solved as documents_of
from .command_line import rlplan
from .solved_folder import write_profiled

RIDDLES = (
    "slack: all scores",
    "all scores but the last",
    "if forced by its name",
    "plain sync ",
    "x sync",
    "reward exposed",
)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """A folder with a plain plan and one of mode exact of one job."""
    folder = tmp_path_factory.mktemp("words")
    write_profiled(folder)
    for mode in ("sync", "exact"):
        assert rlplan("solve", folder, "--mode", mode, "--out", folder / f"{mode}.yaml").returncode == 0
    return folder


def texts(plans, monkeypatch):
    """What the commands print of these plans."""
    monkeypatch.setenv("COLUMNS", "200")
    commands = [("show", "exact"), ("show", "sync"), ("diff", "exact", "sync"), ("diff", "sync", "exact")]
    for command, *names in commands:
        result = rlplan(command, *(plans / f"{name}.yaml" for name in names))
        assert result.returncode == 0, result.stderr
        yield f"{command} {' '.join(names)}", result.stdout
    for name in ("exact", "sync"):
        yield f"why of {name}", "\n".join(load_plan(plans / f"{name}.yaml").job.why.values())


def test_no_text_of_show_why_and_diff_is_a_riddle(plans, monkeypatch):
    for where, text in texts(plans, monkeypatch):
        assert [riddle for riddle in RIDDLES if riddle in text] == [], where


def test_sync_is_the_name_of_a_mode_and_of_nothing_else_on_the_screen(plans, monkeypatch):
    """The phase is the weight transfer, the baseline are plain synchronous rounds. Keys of a plan are its own."""
    for where, text in texts(plans, monkeypatch):
        if "sync" in where.split():
            # The mode of this plan is on its screen; take its own names out.
            text = re.sub(r"(toy: |bias\.mode|\* |mode |by mode |`)sync\b", "", text).replace("sync.yaml", "")
            text = re.sub(r"exact -> sync|sync -> exact|(exact|sync) +(exact|sync)", "", text)
        assert re.findall(r"(?<![\w.])sync\b(?!\.\w)", text) == [], (where, text)
    shown = rlplan("show", plans / "exact.yaml").stdout
    assert "weight transfer" in shown and "plain synchronous rounds" in shown


def test_a_long_round_that_only_one_plan_has_is_none_in_the_other_and_not_unknown(plans):
    for old, new in (("exact", "sync"), ("sync", "exact")):
        text = rlplan("diff", plans / f"{old}.yaml", plans / f"{new}.yaml").stdout
        [line] = [line for line in text.splitlines() if "long round, mean" in line]
        assert "none" in line and "unknown" not in line, line


def test_an_alternative_on_more_nodes_says_that_it_takes_them():
    base = documents_of(mode="sync")
    # The other update there is takes four accelerators, of which a node has two.
    update = base.profile.train[1]
    profile = base.profile.model_copy(update={"train": (update, update.model_copy(update={"dp": 4}))})
    plan = solve(
        laptop(nodes=2),
        base.job,
        profile,
        base.trace,
        base.plan.inputs,
        SolveOptions(passes=QUICK, mode="sync", objective="usd"),
    ).plan
    text = plan.job.why["rounds.short.train"]
    assert plan.predicted.nodes == 1 and "dp 4" in text.partition("next best: ")[2]
    assert text.endswith("% cost per sample, the rest kept (takes 2 nodes instead of 1)")
    assert float(re.search(r"\+([\d.]+)% cost", text)[1]) > 80


def test_a_job_that_shares_with_nobody_is_not_held_against_a_bound_on_sharing():
    alone = group(
        {"big": member(1.0, 1.049, 1.0) | {"slowdown": {**member(1.0, 1.049, 1.0)["slowdown"], "keeps": True}}}
    )
    text = "\n".join(groups_text(groups_plan({"g1": alone})))
    assert "at most 1.000x" not in text and "big: 1.000x, alone on its nodes" in text and "p95 1.049" in text
    shared = "\n".join(groups_text(groups_plan({"g1": group(["big", "small"])})))
    assert "big: 1.100x (p50 1.100x, p95 1.200x) of at most 1.500x" in shared
