"""The report's text on figures made by hand."""

from rlplan.cli.report import run_text

DETAIL = {
    "mode": "exact", "steps": 3, "step_s": 1.0, "step_s_predicted": 1.1, "prediction_error": 0.1, "phases_s": {},
    "rounds": {}, "reward_first": 0.1, "reward_last": 0.2, "rewards": [0.1, 0.2], "on_policy_violations": 0,
    "conservation_violations": 0, "logprob_max_abs_diff": 0.0, "restarts": 0, "state_text": "finished: 3 of 3 steps",
    "tail": {"short": None, "long": None}, "max_over_median_tokens": 3.0, "incidents": [],
    "waste": {"tokens": {"trained": 9}, "share": 0.0, "aborted_samples": 0},
}  # fmt: skip


def test_rewards_that_timed_out_are_told_with_the_most_that_adapting_the_deadline_may_have_cost() -> None:
    counts = {"executions": 640, "correct": 300, "stretched": 4, "timeouts": 32, "cut": 17}
    text = run_text("a", {**DETAIL, "reward_timeouts": counts})
    assert "32 of 640 rewards timed out, 17 of them before the longest deadline: at most so many right answers" in text


def test_a_run_without_timeouts_and_one_of_before_they_were_counted_say_nothing_of_them() -> None:
    for counts in ({}, {"executions": 640, "timeouts": 0, "cut": 0}):
        assert "timed out" not in run_text("a", {**DETAIL, "reward_timeouts": counts})
