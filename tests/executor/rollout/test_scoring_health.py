"""Samples that cannot be scored: which of them are drawn again, how they are told of, and when they end a run."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

from rlplan.executor.rewards.charges import RewardResult
from rlplan.executor.rollout.round_samples import RolloutSample
from rlplan.executor.rollout.scoring_health import HOPELESS_FAILURES, ScoringHealth, Unscored, unscored
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.machines.events import Finished, Issue, Score
from rlplan.rounds.machines.exact_short import ExactShortRound
from rlplan.traces.report_state import incidents

CUTOFF = 8


def scored_round(outcomes: dict[str, str], number: int = 3) -> tuple[ExactShortRound, list[RolloutSample], list[Any]]:
    """An exact short round whose samples all end short; those of prompt p get the outcome `outcomes[p]`, else ok."""
    health = ScoringHealth(number)
    machine = ExactShortRound([f"p{i}" for i in range(number)], number, 2, CUTOFF, 64)
    samples, told = [], []
    actions = machine.start()
    while actions:
        action = actions.pop(0)
        prompt = machine.draws[action.key.draw].prompt
        if isinstance(action, Issue):
            actions += machine.handle(Finished(action.key, 3, truncated=False))
        elif isinstance(action, Score):
            outcome: Any = outcomes.get(prompt, "ok")
            result = RewardResult(float(outcome == "ok"), 0.1, outcome, f"why {outcome}", 1, "w")
            samples.append(RolloutSample(action.key, prompt, 0.0, reward_outcome=outcome, reward_detail=result.detail))
            told.append(health.event(action.key, prompt, result))
            if isinstance(told[-1], RunFailed):
                break
            actions += machine.handle(told[-1])
    return machine, samples, told


@pytest.mark.parametrize("outcome", ["function_error", "policy_crash", "policy_memory", "policy_error"])
def test_what_a_response_causes_is_reward_0_in_an_exact_round_and_never_redraws_its_group(outcome: str) -> None:
    machine, samples, _ = scored_round({"p1": outcome})
    assert machine.done and len(machine.draws) == 3, "no group was drawn a second time"
    groups = {group.prompt: group.rewards for group in machine.outcome().trained}
    assert groups == {"p0": (1.0, 1.0), "p1": (0.0, 0.0), "p2": (1.0, 1.0)}
    told = unscored(samples)
    assert told == ({} if outcome == "policy_error" else {outcome: Unscored(2, f"why {outcome}")})


def test_what_no_response_can_cause_redraws_the_group_and_a_prompt_of_which_nothing_can_be_scored_is_reported() -> None:
    machine, _, _ = scored_round({"p1": "infra_failed"})
    outcome = machine.outcome()
    assert [group.prompt for group in outcome.trained] == ["p0", "p2"]
    assert outcome.failures == {"p1": "why infra_failed"} and len(machine.draws) > 3


def test_a_run_in_which_nothing_can_be_scored_ends_with_the_reason_also_if_each_response_is_blamed() -> None:
    _, _, told = scored_round({f"p{i}": "function_error" for i in range(8)}, 8)
    failures = [item for item in told if isinstance(item, RunFailed)]
    assert str(failures[0]) == "none of the last 16 samples could be scored: why function_error"


def test_small_rounds_of_nothing_but_failures_end_a_run_too() -> None:
    health = ScoringHealth(100)
    for number in range(HOPELESS_FAILURES - 1):
        if number % 4 == 0:
            health.begin_round()
        assert health.hear(f"p{number // 4}", "policy_crash", "x") is None
    assert health.hear("p9", "policy_crash", "x") == "none of the last 16 samples could be scored: x"


def test_a_round_of_which_next_to_nothing_can_be_scored_ends_a_run_and_one_of_which_most_can_does_not() -> None:
    health = ScoringHealth(100)
    said = []
    for number in range(40):
        said.append(health.hear(f"p{number % 10}", "ok" if number in (7, 15) else "function_error", "x"))
    assert next(text for text in said if text) == "only 2 of the round's 20 samples could be scored: x"
    health = ScoringHealth(100)
    assert not any(health.hear(f"p{i}", "ok" if i % 3 == 0 else "function_error", "x") for i in range(200))


def test_one_bad_row_never_ends_a_run_however_many_samples_it_has() -> None:
    health = ScoringHealth(100)
    assert not any(health.hear("bad", "function_error", "KeyError") for _ in range(64))
    assert ScoringHealth(1)._enough == 1


def test_a_report_tells_of_samples_that_could_not_be_scored_with_a_reason() -> None:
    event = {
        "event": "unscored",
        "t_s": 1.5,
        "step": 2,
        "outcome": "function_error",
        "samples": 3,
        "reason": "KeyError",
    }
    [found] = incidents([event], [])
    assert (found["kind"], found["step"]) == ("unscored", 2)
    assert found["text"] == "function_error of 3 samples, the first: KeyError"
