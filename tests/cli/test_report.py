"""The report's text on figures made by hand."""

from rlplan.cli.screens.bars import spark
from rlplan.cli.screens.report_text import comparison, run_text
from rlplan.plans.phrases.phase_names import PHASE_NAMES

DETAIL = {
    "mode": "exact", "steps": 3, "step_s": 1.0, "step_s_expected": 0.0, "reward_timeouts": {},
    "step_s_predicted": 1.1, "prediction_error": 0.1, "phases_s": {},
    "rounds": {}, "reward_first": 0.1, "reward_last": 0.2, "rewards": [0.1, 0.2], "on_policy_violations": 0,
    "conservation_violations": 0, "logprob_max_abs_diff": 0.0, "restarts": 0, "state_text": "finished: 3 of 3 steps",
    "tail": {"short": None, "long": None}, "max_over_median_tokens": 3.0, "incidents": [],
    "waste": {"tokens": {"trained": 9}, "share": 0.0, "aborted_samples": 0}, "coverage": {},
    "overlap": {
        "reward": {"exposed_s": 0.01, "alone_s": 0.3}, "train": {"exposed_s": 0.2, "alone_s": 0.5},
        "streamed": {"rounds": 2, "groups": 7.5, "moved": 3.0},
        "tails": {"rounds": 3, "seconds": 4.2, "moved": 5.5},
        "balanced": {"rounds": 4, "known": 0.75, "moved": 2.5, "moved_tokens": 900.0},
    },
}  # fmt: skip


def row(measured, predicted, error, floored):
    return {"measured": measured, "predicted": predicted, "error": error, "floored": floored}


def test_a_phase_below_the_floor_of_errors_is_not_said_to_be_off_by_a_share_of_something_else() -> None:
    phases = {
        "train": row(0.5, 0.4, 0.2, False),
        "sync": row(0.001, 0.002, 0.05, True), "rollout": row(0.001, 1.0, 50.0, True),
        "reward_exposed": row(0.0, 0.0, None, False),
    }  # fmt: skip
    text = run_text("a", {**DETAIL, "phases_s": phases})
    ends = {
        phase: next(line for line in text.splitlines() if line.startswith(f"  {PHASE_NAMES[phase]} ")).split()[-1]
        for phase in phases
    }
    assert ends == {"train": "20%", "sync": "-", "rollout": ">5000%", "reward_exposed": "unknown"}
    assert "- under 2 % of the step" in text
    assert "under 2 %" not in run_text("a", {**DETAIL, "phases_s": {"train": phases["train"]}})


def test_what_of_a_measured_step_is_the_plans_own_is_told() -> None:
    assert "of which 0.400 s are the predicted long round: deferred prompts" in run_text(
        "a", {**DETAIL, "step_s_expected": 0.4}
    )
    assert "of which" not in run_text("a", DETAIL)


def test_what_is_no_number_is_unknown_and_shown_as_such_in_the_line_of_rewards() -> None:
    unknown = dict.fromkeys(("step_s", "prediction_error", "reward_first", "reward_last", "logprob_max_abs_diff"))
    text = run_text("a", {**DETAIL, **unknown, "rewards": [0.0, None, 1.0]})
    assert text.count("unknown") == 5 and " ?\u2588" in text
    assert spark([]) == "" and spark([0.5, None] * 40) == "?" * 40 and spark([-3.0, 9e9]) == " \u2588"


def test_texts_of_a_trace_stay_on_their_line_and_tell_a_terminal_nothing() -> None:
    evil = "a\x1b[31mb\nc\u202ed\udc80"
    incident = {"step": 1, "t_s": 0.0, "kind": "skipped", "text": evil}
    changes = {
        "incidents": [incident],
        "state_text": evil,
        "waste": {**DETAIL["waste"], "share": 0.1, "tokens": {evil: 3}},
    }
    for detail in ({**DETAIL, **changes}, {**DETAIL, **changes, "steps": 0}):
        text = run_text(evil, detail)
        plain = run_text("a", {**detail, "incidents": [{**incident, "text": "a"}], "state_text": "a"})
        assert len(text.splitlines()) == len(plain.splitlines())
        assert all(c == "\n" or c.isprintable() for c in text)


def test_rewards_that_timed_out_are_told_with_the_most_that_adapting_the_deadline_may_have_cost() -> None:
    counts = {"executions": 640, "correct": 300, "stretched": 4, "timeouts": 32, "cut": 17}
    text = run_text("a", {**DETAIL, "reward_timeouts": counts})
    assert "32 of 640 rewards timed out, 17 of them before the longest deadline: at most so many right answers" in text


def test_a_run_without_timeouts_and_one_of_before_they_were_counted_say_nothing_of_them() -> None:
    for counts in ({}, {"executions": 640, "timeouts": 0, "cut": 0}):
        assert "timed out" not in run_text("a", {**DETAIL, "reward_timeouts": counts})


def test_the_share_of_steps_below_the_predicted_band_is_told_by_kind_of_round_with_its_counts() -> None:
    def below(p50: int, p95: int, steps: int) -> dict[str, float]:
        return {"below_p50": p50, "below_p95": p95, "share_below_p50": p50 / steps, "share_below_p95": p95 / steps}

    found = {
        "short": {"steps": 40, "step_s": below(18, 37, 40), "rollout_s": below(17, 37, 40)},
        "long": {"steps": 8, "step_s": below(8, 8, 8), "rollout_s": below(7, 8, 8)},
        "all": {"steps": 48, "step_s": below(24, 46, 48)},
    }
    text = run_text("a", {**DETAIL, "coverage": found})
    assert "short 18 and 37 of 40 (45%, 92%); long 8 and 8 of 8 (100%, 100%); all 24 and 46 of 48 (50%, 96%)" in text
    assert "; all" not in run_text("a", {**DETAIL, "coverage": {key: found[key] for key in ("short", "all")}})
    assert "below the predicted" not in run_text("a", DETAIL)


def test_each_run_is_compared_with_the_plain_one_under_its_own_name_also_two_of_a_kind():
    def detail(mode, step_s, speedup):
        return {"mode": mode, "steps": 3, "step_s": step_s, "speedup": speedup, "length_ratio": 1.0}

    runs = {"a": detail("exact", 2.0, 1.5), "b": detail("defer", 1.5, 2.0), "plain": detail("sync", 3.0, 1.0)}
    text = comparison({"baseline": {"step_s": 3.0}, "measured_over_predicted": {}, "runs": runs})
    assert text.splitlines() == [
        "baseline 3.00 s a step",
        "a (exact) 2.00 s a step: 1.50x per trained sample, length ratio 1.000",
        "b (defer) 1.50 s a step: 2.00x per trained sample, length ratio 1.000",
    ]


def test_runs_that_are_all_off_by_one_factor_ran_on_a_machine_that_has_changed():
    def said(*ratios):
        roles = dict(zip(("baseline", "planned", "race"), ratios, strict=False))
        row = {"step_s": 1.0, "step_s_predicted": 1.0}
        runs = {"measured_over_predicted": roles, "runs": {}}
        return comparison({**dict.fromkeys(roles, row), **runs}).splitlines()[-1]

    assert said(1.30, 1.34, 1.365) == (
        "all runs took 1.30x to 1.36x the predicted seconds: the machine was slower than when it was profiled. "
        "Compared with each other, the runs are within 5.0% of the predictions"
    )
    assert "0.70x to 0.80x the predicted" in said(0.7, 0.8, None) and "faster" in said(0.7, 0.8, None)
    for ratios in ((1.3, 1.05, 1.4), (1.3, 0.7, 1.2), (0.95, 1.0, 1.02), (1.3, None, None)):
        assert "the machine" not in said(*ratios)


def test_what_was_hidden_behind_decoding_is_told_beside_what_it_would_have_cost() -> None:
    text = run_text("a", DETAIL)
    assert "rewards 10 ms (0.300 s if nothing ran beside the rollout); training 0.200 s (0.500 s if" in text
    assert "in 2 rounds 7.5 groups were trained before the round's end, 3.0 samples moved" in text
    assert "in 3 rounds engines of a higher TP size decoded the tail: they took over in 4.20 s, 5.5 samples" in text
    assert "4 rounds balanced by history, which 75% of the prompts had: 2.5 samples a round moved" in text
    nothing = dict.fromkeys(("streamed", "tails", "balanced"))
    without = run_text("a", {**DETAIL, "overlap": {**DETAIL["overlap"], **nothing}})
    assert "samples moved" not in without and "the tail" not in without


def test_what_drafts_gave_is_told_and_nothing_of_a_run_without() -> None:
    epoch = {"epoch": 1, "rounds": 2, "accepted": 0.5, "by_source": {"own": 0.5}, "saved_s": 1.5}
    drafts = {
        **epoch, "accepted_share_at": [0.9, None], "epochs": [epoch, {**epoch, "epoch": 2, "accepted": 0.75}],
        "batches": {}, "ahead_samples": 0, "ahead_tokens": 0, "index_bytes": 5000, "history_bytes": 700,
    }  # fmt: skip
    text = run_text("a", {**DETAIL, "drafts": drafts})
    assert "drafts in 2 rounds: 0.500 accepted tokens a sample's step (its own text 0.500)" in text
    assert "the second and so on: 90%, unknown" in text and "by epoch: 1: 0.500, 2: 0.750" in text
    assert "drafts saved 0.750 s of engine time a round, 1.50 s in all" in text
    assert "index of the engines at most 5 kB; the run remembers 700 bytes" in text and "ahead" not in text
    slower = run_text("a", {**DETAIL, "drafts": {**drafts, "saved_s": -1.5, "ahead_samples": 2, "ahead_tokens": 60}})
    assert "drafts cost 0.750 s" in slower and "2 samples decoded ahead for drafts alone, 60 tokens" in slower
    assert "engine time" not in run_text("a", {**DETAIL, "drafts": {**drafts, "saved_s": None}})
    assert "drafts" not in run_text("a", {**DETAIL, "drafts": None})
