"""A plan's `predicted` block: its figures agree with each other, and with a run of the plan that is looked at."""

import math
from collections import defaultdict

import pytest

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.costs.decode_costs import decode_cost, entry_of
from rlplan.planner.explain.watched_rounds import RoundWatch
from rlplan.planner.simulate.columns.round_log import mean
from rlplan.planner.simulate.whole_run import Watch, simulate_plan
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.facts.critical_path import critical_path
from rlplan.rounds.round_shape import tail_begins_s

QUICK = (Pass(5, 2, math.inf), Pass(48, 48, 0.1))
SMALL = {"prompts_per_step": 8, "samples_per_prompt": 4}


@pytest.fixture(scope="module")
def solved():
    from rlplan.plans.schema.sections.origin import InputFile, Inputs, ProfileFile

    from ..conftest import heavy_trace, laptop, small_job, small_profile

    def file(name):
        return InputFile(path=name, sha256="0" * 64)

    profile = ProfileFile(path="profile.yaml", sha256="0" * 64, provenance="measured")
    inputs = Inputs(cluster=file("cluster.yaml"), job=file("job.yaml"), profile=profile, lengths=file("lengths.jsonl"))
    trace, costs, job = heavy_trace(), small_profile(), small_job(SMALL)
    plan = solve(laptop(), job, costs, trace, inputs, SolveOptions(mode="exact", passes=QUICK)).plan
    return plan, job, costs, trace


def kinds(plan):
    return {"short": plan.predicted.rounds.short, "long": plan.predicted.rounds.long}


def test_phases_of_a_kind_of_round_add_up_to_its_step(solved):
    plan = solved[0]
    for kind in kinds(plan).values():
        phases = kind.rollout_s.mean + kind.reward_exposed_s.mean + kind.train_s.mean + kind.sync_s
        assert phases == pytest.approx(kind.step_s.mean, rel=1e-9)
    means = sum(kind.share * kind.step_s.mean for kind in kinds(plan).values())
    assert means == pytest.approx(plan.predicted.step_s.mean, rel=1e-9)
    assert critical_path(plan.predicted).total_s == pytest.approx(means, rel=1e-9)
    assert plan.job.why["step"] == critical_path(plan.predicted).text()


def test_what_is_seen_of_a_round_lies_within_it(solved):
    for kind in kinds(solved[0]).values():
        assert 0 < kind.tail_s < kind.rollout_s.mean
        assert 0 <= kind.reward_slack_s <= kind.rollout_s.mean + kind.reward_exposed_s.mean
        assert max(kind.running) <= 1 and kind.running[-1] < kind.running[0]


def test_memory_is_that_of_the_layouts_that_the_plan_uses(solved):
    plan, _, profile, _ = solved
    layouts = set()
    for kind, round_ in zip(kinds(plan).values(), (plan.job.rounds.short, plan.job.rounds.long), strict=True):
        layout = round_.rollout.layout
        entry = entry_of(profile, layout)
        assert kind.memory.kv.capacity_bytes == entry.kv_capacity_tokens * entry.kv_bytes_per_token
        assert 0 < kind.memory.kv.needed_bytes <= kind.memory.kv.capacity_bytes
        assert kind.memory.train is None  # the profile does not know it
        layouts.add(layout)
    engines = sum(decode_cost(profile, entry_of(profile, layout)).host_bytes for layout in layouts)
    # Float32 parameters, gradients and two moments of the trainer beside them, while it trains, and the copy of
    # parameters and moments from which a checkpoint is written meanwhile.
    assert plan.predicted.host_memory.needed_bytes == engines + (16 + 12) * profile.model_parameters
    assert plan.predicted.host_memory.capacity_bytes == 24e9


def test_the_error_is_between_that_of_the_smallest_and_of_the_largest_part(solved):
    assert 0.01 < solved[0].predicted.error.costs < 0.06


class Look(Watch):
    """Watches every round of a run."""

    def __init__(self):
        self.seen = defaultdict(list)

    def round_begins(self, number, kind, cost):
        self.last = RoundWatch()
        return self.last.observe

    def step_done(self, number, step, deferred):
        self.seen[step.kind].append((self.last, step))


def test_a_run_of_the_plan_has_the_tails_the_slack_and_the_memory_that_are_predicted(solved):
    plan, job, profile, trace = solved
    look = Look()
    simulate_plan(plan, job, profile, trace, steps=80, prompts=2048, watch=look)
    for name, kind in kinds(plan).items():
        rounds = look.seen[name]
        assert len(rounds) >= 10
        tails = [step.rollout_s - tail_begins_s(watch.levels(), step.rollout_s) for watch, step in rounds]
        assert mean(tails) == pytest.approx(kind.tail_s, rel=0.25)
        slack = [watch.reward_slack_s(step.rollout_s + step.reward_exposed_s) for watch, step in rounds]
        assert mean(slack) == pytest.approx(kind.reward_slack_s, abs=0.1 * kind.rollout_s.mean)
        most = max(watch.kv_tokens for watch, _ in rounds) * 4096
        assert most == pytest.approx(kind.memory.kv.needed_bytes, rel=0.3)
