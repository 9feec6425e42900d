"""Lengths from runs: what a mode cuts short is not taken for what there is."""

import dataclasses
import math

import pytest

from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.tune.executed_run import load_run
from rlplan.planner.tune.refit import price
from rlplan.planner.tune.run_lengths import epoch_prompts, refit_lengths, run_lengths, scaled
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.length_trace import LengthRow, LengthTrace

from ..conftest import CAP
from ..synthetic_run import solved, synthesize


def mean_tokens(trace):
    groups = trace.by_prompt().values()
    return math.fsum(sum(r.tokens for r in rows) / len(rows) for rows in groups) / len(groups)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Documents and run of a mode, with lengths of the plan's trace times a factor."""
    known = {}

    def execute(mode, factor=1.0, steps=40):
        key = (mode, factor, steps)
        if key not in known:
            documents = solved(mode=mode)
            truth = scaled(documents.trace, factor, CAP)
            folder = tmp_path_factory.mktemp("run") / "r"
            synthesize(folder, documents.plan, documents.job, documents.profile, truth, steps=steps, prompts=2000)
            known[key] = (documents, load_run(folder), fit_lengths(truth, CAP).mean_tokens)
        return known[key]

    return execute


def test_a_plain_run_is_taken_as_it_is(executed):
    _, run, _ = executed("sync")
    rows = [r for s in run.steps for r in s.rows]
    assert sorted(r.tokens for r in run_lengths(run).rows) == sorted(r["tokens"] for r in rows)


def test_settled_prompts_of_an_exact_run_have_the_unconditioned_lengths(executed):
    _, run, mean = executed("exact", steps=90)
    assert {s.kind for s in run.steps} == {"short", "long"}
    assert mean_tokens(run_lengths(run)) == pytest.approx(mean, rel=0.2)
    short_only = [r["tokens"] for s in run.steps if s.kind == "short" for r in s.rows if r["fate"] == "trained"]
    assert sum(short_only) / len(short_only) < 0.6 * mean


def test_prompts_that_an_exact_run_still_owes_stand_in_it_as_long_ones(executed):
    _, run, _ = executed("exact", steps=90)
    late = [i for i, s in enumerate(run.steps) if s.kind == "long"][2]
    owing = dataclasses.replace(run, steps=run.steps[:late])
    settled = dataclasses.replace(run, steps=run.steps[: late + 1])
    owed = owing.steps[-1].deferred
    assert owed >= 8
    with_owed, without = run_lengths(owing), [r for s in owing.steps for r in s.rows if r["fate"] == "trained"]
    assert len(with_owed.prompts) == len({r["prompt"] for r in without}) + owed
    assert mean_tokens(with_owed) > 1.1 * sum(r["tokens"] for r in without) / len(without)
    assert mean_tokens(with_owed) == pytest.approx(mean_tokens(run_lengths(settled)), rel=0.2)


def test_prompts_that_wait_for_a_long_round_of_predict_count_as_long_ones(tmp_path):
    documents = solved(mode="predict")
    trace = documents.trace
    synthesize(tmp_path / "r", documents.plan, documents.job, documents.profile, trace, steps=90, prompts=400)
    whole = load_run(tmp_path / "r")
    waiting = [i for i, s in enumerate(whole.steps) if i > 60 and s.deferred >= 6]
    run = dataclasses.replace(whole, steps=whole.steps[: waiting[0] + 1])
    drawn = {(r["prompt"], r["epoch"]) for s in run.steps for r in s.rows}
    found = run_lengths(run)
    assert len(found.by_prompt()) == len({p for p, _ in drawn}) + run.steps[-1].deferred
    assert epoch_prompts(run, 9) == 400
    assert mean_tokens(found) == pytest.approx(fit_lengths(trace, CAP).mean_tokens, rel=0.2)


@pytest.mark.parametrize("mode", ["race", "defer"])
@pytest.mark.parametrize("factor", [1.0, 1.8])
def test_races_tell_a_factor_and_not_that_short_answers_win(mode, factor, executed):
    documents, run, mean = executed(mode, factor)
    trace, found = refit_lengths(run, documents.trace, price(run, documents.profile), CAP, False, 0)
    assert found == pytest.approx(factor, rel=0.12)
    assert fit_lengths(trace, CAP).mean_tokens == pytest.approx(mean, rel=0.15)
    trained = [r["tokens"] for s in run.steps for r in s.rows if r["fate"] == "trained"]
    assert sum(trained) / len(trained) < (0.9 if mode == "race" else 0.97) * mean
    with pytest.raises(InputError, match="nothing cut short"):
        run_lengths(run)


def test_a_run_of_few_groups_moves_lengths_by_a_factor_that_is_drawn_to_one(executed):
    documents, run, _ = executed("sync", 1.8)
    few = dataclasses.replace(run, steps=run.steps[:3])
    trace, found = refit_lengths(few, documents.trace, price(run, documents.profile), CAP, False, 0)
    assert len(trace.prompts) == len(documents.trace.prompts)
    assert 1.0 < found < 2.2


def test_scaling_keeps_what_the_cap_cut_and_cuts_what_grows_beyond_it():
    rows = [LengthRow("p", 0, i, tokens, tokens == 100, 0.0, 5) for i, tokens in enumerate((1, 40, 60, 100))]
    trace = LengthTrace(rows, 100)
    assert [(r.tokens, r.truncated) for r in scaled(trace, 2.0, 100).rows] == [
        (2, False), (80, False), (100, True), (100, True),
    ]  # fmt: skip
    assert [(r.tokens, r.truncated) for r in scaled(trace, 0.5, 100).rows] == [
        (1, False), (20, False), (30, False), (100, True),
    ]  # fmt: skip
