"""What a run's drafts gave, as tuning finds it: rates by epoch and place, and seconds that agree with the run's."""

import dataclasses
import math

import pytest

from rlplan.planner.tune.draft_rates import with_drafts_of
from rlplan.planner.tune.executed_run import ExecutedRun, load_run
from rlplan.planner.tune.refit import refit, replay_run
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.drafts.draft_schema import DraftRates, ProfiledDrafts
from rlplan.profiles.profile_schema import Profile

from ..conftest import CAP
from ..synthetic_run import slower, solved, synthesize


def drafts(first: float, later: float, places: int = 2) -> ProfiledDrafts:
    """Rates that halve from place to place."""

    def rates(accepted: float) -> DraftRates:
        shares = [0.5**place for place in range(places)]
        return DraftRates(drafted=tuple(0.95 * s for s in shares), accepted=tuple(accepted * s for s in shares),
                          sequence_steps=1000)  # fmt: skip

    return ProfiledDrafts(
        first=rates(first), later=rates(later), step_s=0.0, step_s_per_sequence=0.0, provenance="measured"
    )


def with_drafts(section: ProfiledDrafts):
    return lambda profile: profile.model_copy(update={"drafts": section})


@pytest.fixture(scope="module")
def documents():
    """A plan that drafts, by rates that are too high at first and too low later."""
    found = solved(with_drafts(drafts(0.6, 0.65)), mode="exact")
    assert found.plan.job.rounds.short.rollout.drafts is not None
    return found


TRUTH = drafts(0.2, 0.85)


@pytest.fixture(scope="module")
def run(documents, tmp_path_factory) -> ExecutedRun:
    truth = with_drafts(TRUTH)(documents.profile)
    folder = tmp_path_factory.mktemp("run") / "r"
    return load_run(synthesize(folder, documents.plan, documents.job, truth, documents.trace, steps=60, prompts=200))


def error(run: ExecutedRun, profile: Profile, first_epoch: bool) -> float:
    replays = [r for r in replay_run(run, CAP, False, profile) if r.step.first_epoch == first_epoch]
    assert len(replays) > 10
    return math.fsum(r.total_s for r in replays) / math.fsum(r.step.total_s for r in replays) - 1


def test_rates_of_the_first_and_of_later_epochs_are_found(documents, run):
    found = with_drafts_of(run, documents.profile).drafts
    assert found is not None and found.later is not None
    tokens = documents.plan.job.rounds.short.rollout.drafts.tokens
    for told, put_in in ((found.first, TRUTH.first), (found.later, TRUTH.later)):
        assert told.accepted[:tokens] == pytest.approx(put_in.accepted[:tokens], rel=0.01)
        assert told.drafted[:tokens] == pytest.approx(put_in.drafted[:tokens], rel=0.01)
    assert found.provenance == "measured" and len(found.first.accepted) == 2


@pytest.mark.parametrize("first_epoch", [True, False])
def test_rounds_with_drafts_are_predicted_once_their_rates_are_known(documents, run, first_epoch):
    before, after = documents.profile, with_drafts_of(run, documents.profile)
    assert abs(error(run, before, first_epoch)) > 0.05
    assert abs(error(run, after, first_epoch)) < 0.02


def test_slow_decoding_is_told_apart_from_drafts_that_give_little(documents, tmp_path):
    truth = slower(with_drafts(TRUTH)(documents.profile), decode=1.5)
    folder = synthesize(tmp_path / "r", documents.plan, documents.job, truth, documents.trace, steps=60, prompts=200)
    run = load_run(folder)
    learned = with_drafts_of(run, documents.profile)
    result = refit(learned, run, replay_run(run, CAP, False, learned))
    for line in result.rollout.values():
        assert line.factor == pytest.approx(1.5, rel=0.05)
    assert result.profile.drafts == learned.drafts


def test_a_run_without_later_epochs_keeps_what_the_profile_says_of_them(documents, run):
    early = dataclasses.replace(run, steps=tuple(step for step in run.steps if step.first_epoch))
    found = with_drafts_of(early, documents.profile).drafts
    assert found is not None and found.later == documents.profile.drafts.later
    late = dataclasses.replace(run, steps=tuple(step for step in run.steps if not step.first_epoch))
    found = with_drafts_of(late, documents.profile).drafts
    assert found is not None and found.first == documents.profile.drafts.first


def test_places_beyond_the_plans_drafts_move_as_its_last_one(documents, run):
    longer = documents.profile.model_copy(update={"drafts": drafts(0.6, 0.65, places=4)})
    found, old = with_drafts_of(run, longer).drafts, longer.drafts
    assert found is not None and found.later is not None and len(found.later.accepted) == 4
    tokens = documents.plan.job.rounds.short.rollout.drafts.tokens
    changed = found.later.accepted[tokens - 1] / old.later.accepted[tokens - 1]
    assert found.later.accepted[3] == pytest.approx(changed * old.later.accepted[3])


def test_a_run_without_drafts_changes_nothing_and_a_damaged_event_is_named(documents, run):
    plain = dataclasses.replace(run, steps=tuple(dataclasses.replace(step, drafts=None) for step in run.steps))
    assert with_drafts_of(plain, documents.profile) is documents.profile
    damaged = dataclasses.replace(run.steps[0], drafts={**run.steps[0].drafts, "batches": 3})
    with pytest.raises(InputError, match="an event of drafts is damaged"):
        with_drafts_of(dataclasses.replace(run, steps=(damaged,)), documents.profile)
