"""What a run tells beside its phases: lengths that no mode cut short, seconds of rewards, rates of drafts."""

import dataclasses
import math
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs

from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.tune.executed_run import ExecutedRun, ExecutedStep
from rlplan.planner.tune.refit import price, refit, replay_run
from rlplan.planner.tune.run_lengths import epoch_prompts, refit_lengths, run_lengths, scaled
from rlplan.planner.tune.run_rates import FEWEST, refitted_reward, with_drafts_of
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.draft_schema import DraftRates, ProfiledDrafts
from rlplan.profiles.length_trace import LengthRow, LengthTrace
from rlplan.profiles.phase_schema import Reward, RewardExecutions
from rlplan.profiles.profile_schema import Profile
from rlplan.traces.sample_columns import Samples
from rlplan.traces.trace_events import RewardPart, Sample

from ...traces.events import step_of
from ..conftest import CAP, spread
from ..synthetic_run import ran, slower, solved

# -- lengths -----------------------------------------------------------------------------------------------------------


def mean_tokens(trace):
    groups = trace.by_prompt().values()
    return math.fsum(sum(r.tokens for r in rows) / len(rows) for rows in groups) / len(groups)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Documents, run and mean length of a mode, with lengths of the plan's trace times a factor."""

    @cache
    def execute(mode, factor=1.0, **how):
        documents = solved(mode=mode)
        truth = scaled(documents.trace, factor, CAP)
        run = ran(tmp_path_factory.mktemp("run") / "r", documents, trace=truth, **{"prompts": 2000, **how})
        return documents, run, fit_lengths(truth, CAP).mean_tokens

    return execute


def test_a_plain_run_is_taken_as_it_is(executed):
    _, run, _ = executed("sync")
    rows = [r for s in run.steps for r in s.rows]
    assert sorted(r.tokens for r in run_lengths(run).rows) == sorted(r.tokens for r in rows)


def test_prompts_that_an_exact_run_still_owes_count_as_long_ones(executed):
    _, run, mean = executed("exact", steps=90)
    assert {s.kind for s in run.steps} == {"short", "long"}
    assert mean_tokens(run_lengths(run)) == pytest.approx(mean, rel=0.2)
    short_only = [r.tokens for s in run.steps if s.kind == "short" for r in s.rows if r.fate == "trained"]
    assert sum(short_only) / len(short_only) < 0.6 * mean, "those of settled prompts alone are short"
    late = [i for i, s in enumerate(run.steps) if s.kind == "long"][2]
    owing, settled = (dataclasses.replace(run, steps=run.steps[:end]) for end in (late, late + 1))
    owed = owing.steps[-1].deferred
    assert owed >= 8
    with_owed, without = run_lengths(owing), [r for s in owing.steps for r in s.rows if r.fate == "trained"]
    assert len(with_owed.prompts) == len({r.prompt for r in without}) + owed
    found, short = mean_tokens(run_lengths(settled)), sum(r.tokens for r in without) / len(without)
    assert short < 0.9 * found, "without those that it owes"
    assert abs(mean_tokens(with_owed) - found) < 0.5 * (found - short)


def test_prompts_that_wait_in_mode_predict_count_as_long_ones(executed):
    _, whole, mean = executed("predict", steps=90, prompts=400)
    waiting = [i for i, s in enumerate(whole.steps) if i > 60 and s.deferred >= 6]
    run = dataclasses.replace(whole, steps=whole.steps[: waiting[0] + 1])
    drawn = {(r.prompt, r.epoch) for s in run.steps for r in s.rows}
    found = run_lengths(run)
    assert len(found.by_prompt()) == len({p for p, _ in drawn}) + run.steps[-1].deferred
    assert epoch_prompts(run, 9) == 400
    assert mean_tokens(found) == pytest.approx(mean, rel=0.2)


@pytest.mark.parametrize(("mode", "factor"), [("race", 1.0), ("race", 1.8), ("defer", 1.8)])
def test_races_tell_a_factor_and_not_that_short_answers_win(mode, factor, executed):
    documents, run, mean = executed(mode, factor)
    trace, found = refit_lengths(run, documents.trace, price(run, documents.profile), CAP, False, 0)
    assert found == pytest.approx(factor, rel=0.12)
    assert fit_lengths(trace, CAP).mean_tokens == pytest.approx(mean, rel=0.15)
    trained = [r.tokens for s in run.steps for r in s.rows if r.fate == "trained"]
    assert sum(trained) / len(trained) < (0.9 if mode == "race" else 0.97) * mean
    with pytest.raises(InputError, match="nothing cut short"):
        run_lengths(run)


def test_a_run_of_few_groups_moves_lengths_by_a_damped_factor(executed):
    documents, run, _ = executed("sync", 1.8)
    few = dataclasses.replace(run, steps=run.steps[:3])
    trace, found = refit_lengths(few, documents.trace, price(run, documents.profile), CAP, False, 0)
    assert len(trace.prompts) == len(documents.trace.prompts)
    assert 1.0 < found < 2.2


def test_scaling_keeps_what_the_cap_cut_and_cuts_what_grows_beyond_it():
    rows = [LengthRow("p", 0, i, tokens, tokens == 100, 0.0, 5) for i, tokens in enumerate((1, 40, 60, 100))]
    for factor, tokens, cut in ((2.0, [2, 80, 100, 100], 2), (0.5, [1, 20, 30, 100], 1)):
        found = scaled(LengthTrace(rows, 100), factor, 100).rows
        assert [r.tokens for r in found] == tokens and [r.truncated for r in found] == [False] * (4 - cut) + [
            True
        ] * cut


# -- rewards -----------------------------------------------------------------------------------------------------------

OLD = RewardExecutions(correct_s=(0.1,), wrong_s=(0.1, 30.0), correct=0.5, unsolved=0.0)
PROFILED = Reward(workers=1, latency=spread(0.2), per_sample_s=0.1, executions=OLD, load=0.5)


def row(prompt: str, seconds: float, right: bool = True, late: bool = False, **parts: RewardPart) -> Sample:
    outcome = "policy_timeout" if late else "ok" if right else "policy_error"
    return Sample(1, prompt, 0, 0, 0, 9, 9, False, "trained", float(right), seconds, outcome, parts)


def rewarded(rows: list[Sample], profiled: Reward = PROFILED) -> Reward:
    """What is refitted from one step of 10 s with these samples, scored by three workers under a deadline of 30 s."""
    plan = solved(mode="sync").plan
    reward = plan.job.reward.model_copy(update={"workers": 3, "deadline_s": 30.0})
    plan = plan.model_copy(update={"job": plan.job.model_copy(update={"reward": reward})})
    step = ExecutedStep(**structs.asdict(step_of(1, rollout_s=10.0)), rows=Samples(rows), warm=True)
    return refitted_reward(profiled, ExecutedRun(Path(), plan, (step,)), 2.0)


def test_a_run_with_samples_enough_gives_the_seconds_of_its_own_answers() -> None:
    few = [row("a", 2.0), row("b", 0.5, right=False)]
    assert rewarded(few).executions == OLD, "with few the distribution is as it was"
    found = rewarded([*few, row("a", 3.0), *[few[1]] * (FEWEST - 1)])
    assert found.executions.correct_s == (3.0,) and set(found.executions.wrong_s) == {0.5}
    assert found.executions.scatter == pytest.approx(1.5)
    assert found.load == pytest.approx((5.0 + 0.5 * FEWEST) / 10.0)
    assert found.workers == 3, "its rounds decoded beside three"
    late = [row("a", 1.0)] * FEWEST + [row("a", 2.0, right=False, late=True)] * FEWEST
    assert set(rewarded(late).executions.wrong_s) == {30.0}, "one that a short deadline ended never ends"


def test_seconds_that_all_samples_share_are_multiplied_by_the_factor() -> None:
    constant = PROFILED.model_copy(update={"executions": None, "load": None})
    found = rewarded([row("a", 2.0)] * FEWEST, constant)
    assert found.per_sample_s == pytest.approx(0.2) and found.latency.p50 == pytest.approx(0.4)
    assert found.executions is None and found.load is None and found.workers == 1


def test_of_several_parts_only_those_of_the_first_pool_count() -> None:
    def summed(prompt: str, right: bool) -> Sample:
        judge, code = RewardPart(1.0, 6.0, "ok"), RewardPart(float(right), 0.3, "ok", deadline_s=30.0)
        return row(prompt, 6.0, taste=judge, code=code)

    found = rewarded([summed(f"p{number % 8}", number % 2 == 0) for number in range(FEWEST)])
    assert found.executions.correct == 1.0 and found.executions.unsolved == 0.5
    assert {*found.executions.correct_s, *found.executions.wrong_s} == {0.3}
    assert found.load == pytest.approx(0.3 * FEWEST / 10.0), "a judge is on no core of the workers"


# -- drafts ------------------------------------------------------------------------------------------------------------


def drafts(first: float, later: float, places: int = 2) -> ProfiledDrafts:
    """Rates that halve from place to place."""

    def rates(accepted: float) -> DraftRates:
        shares = [0.5**place for place in range(places)]
        return DraftRates(drafted=tuple(0.95 * s for s in shares), accepted=tuple(accepted * s for s in shares),
                          sequence_steps=1000)  # fmt: skip

    return ProfiledDrafts(
        first=rates(first), later=rates(later), step_s=0.0, step_s_per_sequence=0.0, provenance="measured"
    )


def guessing(profile: Profile) -> Profile:
    """Its rates are too high at first and too low later."""
    return profile.model_copy(update={"drafts": drafts(0.6, 0.65)})


TRUTH = drafts(0.2, 0.85)


@pytest.fixture(scope="module")
def drafted(tmp_path_factory):
    """(documents of a plan that drafts, tokens of its drafts, a run of it)."""
    documents = solved(guessing, mode="exact")
    truth = documents.profile.model_copy(update={"drafts": TRUTH})
    run = ran(tmp_path_factory.mktemp("run") / "r", documents, truth, steps=40, prompts=140)
    return documents, documents.plan.job.rounds.short.rollout.drafts.tokens, run


def test_rates_of_the_first_and_of_later_epochs_are_found(drafted):
    documents, tokens, run = drafted
    found, old = with_drafts_of(run, documents.profile).drafts, documents.profile.drafts
    for told, put_in in ((found.first, TRUTH.first), (found.later, TRUTH.later)):
        assert told.accepted[:tokens] == pytest.approx(put_in.accepted[:tokens], rel=0.01)
        assert told.drafted[:tokens] == pytest.approx(put_in.drafted[:tokens], rel=0.01)
    assert found.provenance == "measured" and len(found.first.accepted) == 2
    # A run without epochs of either kind keeps what the profile says of them.
    early, late = (
        dataclasses.replace(run, steps=tuple(step for step in run.steps if step.first_epoch == first))
        for first in (True, False)
    )
    assert with_drafts_of(early, documents.profile).drafts.later == old.later
    assert with_drafts_of(late, documents.profile).drafts.first == old.first
    # Places beyond the plan's drafts move as its last one.
    longer = drafts(0.6, 0.65, places=4)
    found = with_drafts_of(run, documents.profile.model_copy(update={"drafts": longer})).drafts.later.accepted
    assert found[3] == pytest.approx(found[tokens - 1] / longer.later.accepted[tokens - 1] * longer.later.accepted[3])


@pytest.mark.parametrize("first_epoch", [True, False])
def test_rounds_with_drafts_are_predicted_once_their_rates_are_known(drafted, first_epoch):
    documents, _, run = drafted

    def error(profile: Profile) -> float:
        replays = [r for r in replay_run(run, CAP, False, profile) if r.step.first_epoch == first_epoch]
        assert len(replays) > 10
        return abs(math.fsum(r.total_s for r in replays) / math.fsum(r.step.total_s for r in replays) - 1)

    assert error(documents.profile) > 0.05
    assert error(with_drafts_of(run, documents.profile)) < 0.02


def test_slow_decoding_is_told_apart_from_drafts_that_give_little(drafted, tmp_path):
    documents, *_ = drafted
    truth = slower(documents.profile.model_copy(update={"drafts": TRUTH}), decode=1.5)
    run = ran(tmp_path / "r", documents, truth, steps=40, prompts=140)
    learned = with_drafts_of(run, documents.profile)
    result = refit(learned, run, replay_run(run, CAP, False, learned))
    assert [line.factor for line in result.rollout.values()] == pytest.approx([1.5] * len(result.rollout), rel=0.05)
    assert result.profile.drafts == learned.drafts


def test_a_run_without_drafts_changes_nothing_and_a_damaged_event_is_named(drafted):
    documents, _, run = drafted
    plain = dataclasses.replace(run, steps=tuple(structs.replace(step, drafts=None) for step in run.steps))
    assert with_drafts_of(plain, documents.profile) is documents.profile
    damaged = structs.replace(run.steps[0], drafts={**run.steps[0].drafts, "batches": 3})
    with pytest.raises(InputError, match="an event of drafts is damaged"):
        with_drafts_of(dataclasses.replace(run, steps=(damaged,)), documents.profile)
