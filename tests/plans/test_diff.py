"""The difference of two plans of one job: which changes count, their seconds and dollars, and their uncertainty."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.plans.diff.change import NOT_GIVEN, Quantity, changes
from rlplan.plans.diff.difference_error import Errors
from rlplan.plans.diff.input_diff import InputFiles
from rlplan.plans.diff.job_diff import NO_FILES, PlanDiff, diff_jobs, why_of
from rlplan.plans.diff.job_report import job_report
from rlplan.plans.diff.markdown import MAX_LINES, code, escape, markdown
from rlplan.plans.diff.one_plan import one_plan_report
from rlplan.plans.diff.quantity_text import change_text, values
from rlplan.plans.diff.review import Row, fold
from rlplan.plans.facts.digest import job_decisions, job_predictions
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.schema.predicted import PredictedError
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump, loads

from .strategies import plans, relaxed


@pytest.fixture
def plan(folder: Any) -> Plan:
    folder.edit("plan.yaml", '    cutoff_tokens: "long', '    rounds.short.cutoff_tokens: "long')
    return load_plan(folder.path("plan.yaml"))


def edited(plan: Plan, *replacements: tuple[str, str], resolved: bool = True) -> Plan:
    """The plan with text replaced; `resolved`: with new digests, as if it was solved and not edited by hand."""
    text = dump(plan)
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    changed = loads(text, Plan)
    return changed.model_copy(update={"decisions_sha256": job_decisions(changed.job)}) if resolved else changed


def shown(diff: PlanDiff) -> str:
    return markdown(job_report(diff, "plans/a.yaml"))


def rescaled(plan: Plan, factor: float, **predicted: Any) -> Plan:
    """The plan with its seconds per sample and its price multiplied by a factor."""
    p = plan.predicted
    changed = p.model_copy(
        update={
            "seconds_per_sample": p.seconds_per_sample * factor,
            "usd_per_1k_samples": p.usd_per_1k_samples * factor,
            **predicted,
        }
    )
    return plan.model_copy(update={"predicted": changed})


def test_a_key_that_a_file_leaves_out_at_its_default_changes_from_that_default(plan: Plan) -> None:
    rounds = plan.job.rounds
    short = rounds.short.model_copy(update={"train": rounds.short.train.model_copy(update={"sp": 2})})
    job = plan.job.model_copy(update={"rounds": rounds.model_copy(update={"short": short})})
    solver = plan.solver.model_copy(update={"for_any": True})
    other = plan.model_copy(update={"job": job, "solver": solver, "decisions_sha256": job_decisions(job)})
    there, back = diff_jobs(plan, other), diff_jobs(other, plan)
    changed = {d.change.key: (d.change.old, d.change.new) for d in there.decisions}
    assert changed == {"rounds.short.train.sp": (1, 2)}
    assert {c.key: (c.old, c.new) for c in there.solver} == {"solver.for_any": (False, True)}
    assert [(d.change.old, d.change.new) for d in back.decisions] == [(2, 1)]
    (line,) = [line for line in shown(there).splitlines() if "train.sp" in line]
    assert "1" in line and "none" not in line


SPELLINGS = {
    "a number spelt otherwise": ("p50: 6.1,", "p50: 61e-1,"),
    "another wording of why": ("at 200 they cost 0.41 x 27 s", "nothing else is known"),
    "another time of solving": ("2026-01-02T03:04:05Z", "2027-01-02T03:04:05Z"),
    "another version of rlplan": ("rlplan: 0.1.0", "rlplan: 0.2.0"),
    "a file that moved": ("path: profile.yaml", "path: measured/profile.yaml"),
    "keys in another order": ("engines: 2, tp: 1", "tp: 1, engines: 2"),
    "a default written out": ("deadline_s: 2.0}", "deadline_s: 2.0, synchronous: false}"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_has_no_meaning_is_no_difference(spelling: str, plan: Plan) -> None:
    diff = diff_jobs(plan, edited(plan, SPELLINGS[spelling], resolved=False))
    assert diff.same and not diff.decisions and not diff.inputs
    assert "same:" in shown(diff) and len(shown(diff).splitlines()) == 4


def test_a_plan_in_memory_is_the_same_as_its_file_with_fewer_digits(plan: Plan) -> None:
    precise = rescaled(plan, 1 + 1e-9, error=PredictedError(costs=1 / 3, lengths=0.0, sampling=0.0))
    assert diff_jobs(precise, loads(dump(precise, digits=WRITTEN_DIGITS), Plan)).same


MEANINGS = {
    "decision": ("cutoff_tokens: 288", "cutoff_tokens: 296"),
    "prediction": ("p50: 6.1,", "p50: 6.2,"),
    "detail of a prediction": ("tail_s: 3.9", "tail_s: 4.0"),
    "solver": ("status: optimal", "status: feasible"),
    "provenance": ("provenance: measured", "provenance: estimated"),
}


@pytest.mark.parametrize("meaning", MEANINGS)
def test_whatever_means_something_is_a_difference_and_is_named(meaning: str, plan: Plan) -> None:
    diff = diff_jobs(plan, edited(plan, MEANINGS[meaning]))
    assert not diff.same
    word = {"prediction": "step, p50", "provenance": "provenance"}.get(meaning, MEANINGS[meaning][0].partition(":")[0])
    assert word in shown(diff).replace("\\", "")


def test_an_input_with_another_digest_is_a_difference(plan: Plan) -> None:
    sha = plan.inputs.job.sha256
    diff = diff_jobs(plan, edited(plan, (sha, "f" * 64)))
    assert not diff.same
    [change] = diff.inputs
    assert (change.name, change.keys, change.old_state) == ("job", None, "not at hand")
    text = shown(diff)
    assert f"`{sha[:8]}…`" in text and "not at hand" in text and "estimated anew" in text


def test_decisions_stand_by_key_with_the_new_plans_reason_grouped_by_kind_of_round(plan: Plan) -> None:
    new = edited(
        plan, ("cutoff_tokens: 288", "cutoff_tokens: 200"), ("engines: 1, tp: 2", "engines: 2, tp: 1"),
        ("workers: 1,", "workers: 2,"),
    )  # fmt: skip
    diff = diff_jobs(plan, new)
    assert [(d.change.key, d.change.old, d.change.new, d.block) for d in diff.decisions] == [
        ("reward.workers", 1, 2, "job"),
        ("rounds.short.cutoff_tokens", 288, 200, "short round"),
        ("rounds.long.rollout.engines", 1, 2, "long round"),
        ("rounds.long.rollout.tp", 2, 1, "long round"),
    ]
    assert "4 decisions differ" in shown(diff)


def test_a_reason_is_taken_from_the_nearest_key_above_and_only_where_it_is_about_the_decision() -> None:
    why = {"rounds": "shares", "rounds.short.rollout": "engines", "rounds.short.rollout.drafts": "drafts"}
    assert why_of("rounds.short.rollout.engines", why) == "engines"
    assert why_of("rounds.short.rollout.drafts.tokens", why) == "drafts"
    assert why_of("rounds.long", why) == "shares"
    assert why_of("rounds.long.train.dp", why) == ""
    assert why_of("rounds.short.rollout.max_num_seqs", why) == ""


def test_a_section_that_only_one_plan_has_is_one_decision(plan: Plan) -> None:
    drafts = "max_num_seqs: 80, drafts: {tokens: 3, up_to_sequences: 8}"
    [decision] = diff_jobs(plan, edited(plan, ("max_num_seqs: 80, drafts: null", drafts))).decisions
    assert decision.change.key == "rounds.short.rollout.drafts"
    new = {"source": "history", "tokens": 3, "up_to_sequences": 8, "run_ahead": 0}
    assert decision.change.old is None and decision.change.new == new


def test_a_plan_edited_by_hand_is_called_out_and_its_reasons_are_not_repeated(plan: Plan) -> None:
    plan = edited(plan)
    new = edited(plan, ("cutoff_tokens: 288", "cutoff_tokens: 200"), resolved=False)
    diff = diff_jobs(plan, new)
    assert diff.edited == ("new",) and diff.decisions[0].why == ""
    assert "edited after it was solved" in shown(diff)
    assert "**edited by hand: the figures are of the solved decisions; solve again; 1 decision differs**" in shown(diff)
    assert "as fast as before" not in shown(diff)
    assert "the old plan was edited by hand" in shown(diff_jobs(new, plan))
    assert diff_jobs(plan, edited(plan, ("cutoff_tokens: 288", "cutoff_tokens: 200"))).decisions[0].why


def test_what_no_input_explains_is_another_seed_version_or_solver(plan: Plan) -> None:
    plan = edited(plan)
    other = edited(plan, ("cutoff_tokens: 288", "cutoff_tokens: 296"))
    assert "no input differs: another seed, version or solver**" in shown(diff_jobs(plan, rescaled(other, 1.001)))
    job = edited(other, (plan.inputs.job.sha256, "f" * 64))
    assert "no input differs" not in shown(diff_jobs(plan, job))


def refreshed(plan: Plan) -> Plan:
    """The plan as `rlplan refresh` writes it after an edit."""
    update = {"refreshed": True, "status": "feasible", "gap": 0.03}
    return plan.model_copy(update={"solver": plan.solver.model_copy(update=update)})


def test_a_plan_that_was_edited_and_refreshed_says_so_and_blames_no_search(plan: Plan) -> None:
    plan = edited(plan)
    other = rescaled(edited(plan, ("cutoff_tokens: 288", "cutoff_tokens: 296")), 1.001)
    text = shown(diff_jobs(plan, refreshed(other)))
    assert "no input differs: edited by hand and refreshed**" in text
    assert "the new plan was edited by hand and refreshed: no search chose it, and it is 3" in text
    assert "another seed" not in text and "ended at a limit" not in text
    assert "the old plan was edited by hand and refreshed**" in shown(diff_jobs(refreshed(other), plan))


def test_edited_predictions_are_called_out_and_no_plan_is_called_faster_for_them(plan: Plan) -> None:
    plan = edited(plan)
    plan = plan.model_copy(update={"predicted_sha256": job_predictions(plan.predicted)})
    wrong = plan.predicted.model_copy(
        update={"step_s": plan.predicted.step_s.model_copy(update={"mean": plan.predicted.step_s.mean / 10})}
    )
    new = plan.model_copy(update={"predicted": wrong})
    diff = diff_jobs(plan, new)
    assert diff.figures_edited == ("new",) and diff.as_dict()["figures_edited"] == ["new"]
    text = shown(diff)
    assert "the predictions of the new plan were edited after it was solved; do not trust them" in text
    assert "**the predictions of the new plan were edited by hand; solve again" in text
    assert "as fast as before" not in text and "another seed" not in text
    assert "the predictions of the old plan were edited by hand" in shown(diff_jobs(new, plan))
    assert diff_jobs(plan, plan).figures_edited == ()
    alone = one_plan_report(new, "plan.yaml", True, NO_FILES)
    assert any("predictions of the new plan were edited" in line for line in alone.warnings)


def test_costs_of_one_profile_and_layout_are_off_by_one_factor_which_leaves_the_ratio(plan: Plan) -> None:
    diff = diff_jobs(plan, rescaled(plan, 0.9))
    assert diff.errors.common_costs and not diff.errors.one_simulation
    effect, s = diff.effect("seconds_per_sample"), plan.predicted.seconds_per_sample
    sampling = math.hypot(0.002, 0.002 * 0.9)
    assert effect.sigma == pytest.approx(s * math.hypot(0.05 * 0.1, sampling))
    assert effect.relative_sigma == pytest.approx(0.9 * math.hypot(0.002, 0.002))
    assert effect.within_error is False
    assert "faster: 10.0% fewer seconds per sample (±0.25%)" in shown(diff)


def test_what_two_simulations_differ_by_chance_is_within_the_error(plan: Plan) -> None:
    diff = diff_jobs(plan, rescaled(plan, 1.0004))
    assert diff.effect("seconds_per_sample").within_error and diff.effect("seconds_per_sample").tone == 0
    assert "no faster or slower beyond the error (+0.04%, ±0.28%)" in shown(diff)


def test_another_price_of_the_same_steps_is_certain(plan: Plan) -> None:
    p = plan.predicted
    dearer = p.model_copy(update={"usd_per_1k_samples": 1.5 * p.usd_per_1k_samples, "usd_per_hour": 0.15})
    diff = diff_jobs(plan, plan.model_copy(update={"predicted": dearer}))
    price = diff.effect("usd_per_1k_samples")
    assert diff.errors.one_simulation and price.relative_sigma == 0 and not price.within_error
    assert price.sigma == pytest.approx(0.5 * p.usd_per_1k_samples * math.hypot(0.05, 0.002))
    assert "| +50.0% |" in shown(diff) and "±" not in shown(diff), "and no footnote about what is not there"


def test_the_errors_of_other_layouts_or_another_profile_are_independent(plan: Plan) -> None:
    layout = edited(plan, ("engines: 1, tp: 2", "engines: 2, tp: 1"))
    profile = edited(plan, (plan.inputs.profile.sha256, "f" * 64))
    s = plan.predicted.seconds_per_sample
    for other in (layout, profile):
        diff = diff_jobs(plan, rescaled(other, 0.95, error=PredictedError(costs=0.04, lengths=0.0, sampling=0.0)))
        assert not diff.errors.common_costs
        effect = diff.effect("seconds_per_sample")
        assert effect.sigma == pytest.approx(math.hypot(0.05 * s, 0.002 * s, 0.04 * 0.95 * s))
        assert effect.relative_sigma == pytest.approx(0.95 * math.hypot(0.05, 0.002, 0.04))
        assert effect.within_error
        assert "no faster or slower beyond the error (-5.0%, ±6.1%)" in shown(diff)
        assert "independent" in shown(diff)


def test_the_error_of_one_length_trace_is_common_to_plans_of_one_mode_and_independent_between_modes(plan: Plan) -> None:
    error = PredictedError(costs=0.01, lengths=0.06, sampling=0.001)
    old, faster = rescaled(plan, 1.0, error=error), rescaled(plan, 0.95, error=error)
    same_mode = diff_jobs(old, faster)
    assert same_mode.errors.common_lengths
    noise = math.hypot(0.001, 0.001)
    assert same_mode.effect("seconds_per_sample").relative_sigma == pytest.approx(0.95 * noise)
    assert "the error of the profile's costs (1.0%) and of the lengths (6.0%) is common to both" in shown(same_mode)
    bias = faster.job.bias.model_copy(update={"mode": "defer"})
    other_mode = faster.model_copy(update={"job": faster.job.model_copy(update={"bias": bias})})
    for other in (
        other_mode,
        edited(faster, (plan.inputs.lengths.sha256, "f" * 64)),
    ):
        diff = diff_jobs(old, other)
        assert not diff.errors.common_lengths
        assert diff.effect("seconds_per_sample").relative_sigma == pytest.approx(0.95 * math.hypot(0.06, 0.06, noise))
        assert "of the lengths (6.0%)" in shown(diff)


def test_the_error_of_a_small_ratio_is_small(plan: Plan) -> None:
    other = edited(plan, (plan.inputs.profile.sha256, "f" * 64))
    effect = diff_jobs(plan, rescaled(other, 0.0004)).effect("seconds_per_sample")
    assert effect.relative_sigma == pytest.approx(0.0004 * math.hypot(0.05, 0.05, 0.002, 0.002))
    assert change_text(effect) == "0.0004 times ±2.8e-05"


@given(
    st.lists(st.floats(0, 0.3), min_size=6, max_size=6),
    st.floats(0.5, 2),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_the_deviations_are_those_of_drawn_errors(
    shares: list[float], ratio: float, common: tuple[bool, bool, bool]
) -> None:
    """Both are linear in the six errors, so their squares are sums of squares, one for each error."""
    pairs = [(shares[2 * k], shares[2 * k] if both else shares[2 * k + 1], both) for k, both in enumerate(common)]
    (c1, c2, _), (l1, l2, _), (m1, m2, _) = pairs
    old = PredictedError(costs=c1, lengths=l1, sampling=m1)
    errors = Errors(old, PredictedError(costs=c2, lengths=l2, sampling=m2), common[0], common[2], common[1])
    # What s2 (1 + y) - s1 (1 + x) and r (1 + y) / (1 + x) are off by, to first order, for s1 = 1 and s2 = r.
    difference = sum((a * (ratio - 1)) ** 2 if both else a**2 + (b * ratio) ** 2 for a, b, both in pairs)
    relative = sum(0.0 if both else ratio**2 * (a**2 + b**2) for a, b, both in pairs)
    assert errors.sigma(1.0, ratio) == pytest.approx(math.sqrt(difference), abs=1e-12)
    assert errors.ratio_sigma(1.0, ratio) == pytest.approx(math.sqrt(relative), abs=1e-12)


def test_figures_whose_error_no_plan_states_have_no_deviation_and_no_colour(plan: Plan) -> None:
    slower = edited(
        plan, ("step_s: {p50: 6.1, p95: 7.5", "step_s: {p50: 6.9, p95: 8.5"), ("rollout: 4.5,", "rollout: 5.5,")
    )
    diff = diff_jobs(plan, rescaled(slower, 1.2))
    for key in ("speedup", "step_s.p50", "step_s.p95", "phases_s.rollout"):
        each = diff.effect(key)
        assert each.changed and each.sigma is None and each.relative_sigma is None and each.tone == 0, key
    assert diff.effect("seconds_per_sample").tone == -1


def test_a_difference_beyond_the_error_is_not_called_within_it(plan: Plan) -> None:
    other = edited(plan, (plan.inputs.profile.sha256, "f" * 64))
    diff = diff_jobs(plan, rescaled(other, 1.5))
    assert diff.effect("seconds_per_sample").within_error is False
    assert "slower: 50.0% more seconds per sample" in shown(diff)


def test_prices_of_nodes_memory_and_bias_have_no_error_of_the_seconds(plan: Plan) -> None:
    diff = diff_jobs(plan, rescaled(plan, 1.0, usd_per_hour=0.2, length_ratio=0.9))
    assert diff.effect("usd_per_hour").sigma is None and diff.effect("length_ratio").sigma is None
    assert "length ratio 1.000 -&gt; 0.900" in shown(diff) or "length ratio 1.000 -> 0.900" in shown(diff)


def test_what_is_not_known_is_unknown_and_never_zero(plan: Plan) -> None:
    diff = diff_jobs(plan, rescaled(plan, 0.9))
    train = diff.effect("memory.train")
    assert (train.old, train.new, train.delta, train.relative) == (None, None, None, None)
    assert "Unknown: training memory free." in shown(diff)
    bar = "train: {needed_bytes: 1000.0, capacity_bytes: 4000.0}"
    known = edited(plan, ("train: null\n", bar + "\n"))
    half = diff_jobs(plan, known)
    assert half.effect("memory.train").new == 0.75 and half.effect("memory.train").delta is None
    assert "| training memory free | unknown | 75.0% |" in shown(half)


def test_the_headroom_of_a_plan_is_that_of_its_tightest_kind_of_round(plan: Plan) -> None:
    tight = edited(plan, ("{needed_bytes: 60000000.0, capacity_bytes: 2000000000.0}",
                          "{needed_bytes: 1900000000.0, capacity_bytes: 2000000000.0}"))  # fmt: skip
    effect = diff_jobs(plan, tight).effect("memory.kv")
    assert effect.old == pytest.approx(0.96) and effect.new == pytest.approx(0.05)
    assert effect.tone == -1
    over = edited(plan, ("needed_bytes: 60000000.0, capacity_bytes: 2000000000.0",
                         "needed_bytes: 2100000000.0, capacity_bytes: 2000000000.0"))  # fmt: skip
    assert "does not fit" in shown(diff_jobs(plan, over))


def test_the_seconds_of_the_step_are_told_by_phase(plan: Plan) -> None:
    diff = diff_jobs(plan, edited(plan, ("rollout: 4.5, reward_exposed: 0.1", "rollout: 3.5, reward_exposed: 0.1")))
    assert diff.effect("phases_s.rollout").delta == -1.0
    assert "| · rollout | 4.50 s | 3.50 s | -1.00 s | -22.2%" in shown(diff)
    assert "waiting for rewards 100 ms" in shown(diff), "what did not change stands in the line below"


def test_old_and_new_are_in_one_unit_and_a_change_from_nothing_has_no_percentage() -> None:
    assert values(Quantity("x", "x", "s", 0.5, 1.25)) == ("0.500 s", "1.25 s")
    assert values(Quantity("x", "x", "s", 0.5, 0.25)) == ("500 ms", "250 ms")
    assert change_text(Quantity("x", "x", "s", 0.0, 0.25)) == ""
    assert change_text(Quantity("x", "x", "s", 1.0, 1.0)) == "unchanged"
    assert change_text(Quantity("x", "x", "s", 1.0, 0.9, relative_sigma=0.2)) == "-10.0%, within ±20.0%"
    assert change_text(Quantity("x", "x", "s", 1.0, 0.9, relative_sigma=0.02)) == "-10.0% ±2.0%"


def test_lists_are_compared_by_what_their_items_are_of_and_not_by_position() -> None:
    one, two = {"tp": 1, "engines": 2, "ep": 1, "step_s": 0.2}, {"tp": 2, "engines": 1, "ep": 1, "step_s": 0.3}
    assert list(changes({"rollout": [one, two]}, {"rollout": [two, one]})) == []
    slower = {**two, "step_s": 0.4}
    [change] = changes({"rollout": [one, two]}, {"rollout": [slower, one]})
    assert (change.key, change.old, change.new) == ("rollout[tp=2,engines=1].step_s", 0.3, 0.4)
    [gone] = changes({"rollout": [one, two]}, {"rollout": [one]}, NOT_GIVEN)
    assert gone.old == two and gone.new is NOT_GIVEN


def test_numbers_are_the_same_to_the_written_digits_and_booleans_are_no_numbers() -> None:
    assert list(changes({"a": 1, "b": 0.1 + 0.2}, {"a": 1.0, "b": 0.3})) == []
    assert [c.key for c in changes({"a": 1, "b": 1}, {"a": True, "b": 1.00001})] == ["a", "b"]
    assert [c.key for c in changes({"a": 10**400}, {"a": 10**400 + 1})] == ["a"]


def test_a_folded_list_keeps_a_row_of_each_block_and_says_how_many_are_left_out() -> None:
    rows = [Row((f"a{i}",), "a") for i in range(9)] + [Row(("b",), "b")]
    kept, left = fold(rows, 3)
    assert [row.cells[0] for row in kept] == ["a0", "a1", "b"] and left == 7
    assert fold(rows, 10) == (rows, 0)


def test_markdown_begins_with_the_same_hidden_line_for_the_same_plan_whatever_differs(plan: Plan) -> None:
    first = shown(diff_jobs(plan, plan)).splitlines()[0]
    assert first == "<!-- rlplan diff: plans/a.yaml -->"
    assert shown(diff_jobs(plan, rescaled(plan, 0.5))).splitlines()[0] == first
    report = job_report(diff_jobs(plan, plan), "a --> b <!-- c")
    assert markdown(report).splitlines()[0].count("--") == 2, "a name cannot end the comment"


def test_text_of_a_plan_breaks_no_table_opens_no_link_and_mentions_nobody() -> None:
    assert escape("a|b [x](y) @ada #12 <img> *b*\nc") == ("a\\|b \\[x\\](y) &#64;ada &#35;12 &lt;img> \\*b\\* c")
    assert code("a`b|c") == "``a`b\\|c``" and code("`") == "`` ` ``" and code("") == ""


def test_a_new_plan_stands_beside_the_plain_synchronous_one(plan: Plan) -> None:
    text = markdown(one_plan_report(plan, "plans/a.yaml", True, NO_FILES))
    assert "new plan: keyhunt by mode exact" in text.replace("**", "") and "1.47 times as fast" in text
    assert "| seconds per sample | 73.4 ms | 50.0 ms | -31.9% |" in text
    assert "| training memory free |  | unknown |" in text and "`rounds.short.cutoff_tokens`" in text
    gone = markdown(one_plan_report(plan, "plans/a.yaml", False, NO_FILES))
    assert "plan removed" in gone


def test_inputs_that_are_at_hand_tell_what_changed_in_them(folder: Any, tmp_path: Any) -> None:
    old = load_plan(folder.path("plan.yaml"))
    other = tmp_path / "new"
    other.mkdir()
    for name in ("cluster.yaml", "job.yaml", "lengths.jsonl", "profile.yaml"):
        (other / name).write_bytes(folder.path(name).read_bytes() if folder.path(name).exists() else b"")
    job = other / "job.yaml"
    job.write_text(job.read_text().replace("max_response_tokens: 1024", "max_response_tokens: 512 # less"))
    from rlplan.plans.yaml.yaml_io import sha256_file

    new = edited(old, (old.inputs.job.sha256, sha256_file(job)))
    [change] = diff_jobs(old, new, InputFiles(folder.root), InputFiles(other)).inputs
    assert change.keys is not None
    assert [(c.key, c.old, c.new) for c in change.keys] == [("job.rollout.max_response_tokens", 1024, 512)]
    job.write_text(job.read_text() + "# later\n")
    diff = diff_jobs(old, new, InputFiles(folder.root), InputFiles(other))
    assert diff.inputs[0].keys is None and "no longer what the new plan was solved from" in diff.inputs[0].reason
    assert diff.stale["job"] == "other bytes" and "solve again" in shown(diff)
    unsolved = diff_jobs(old, old, InputFiles(folder.root), InputFiles(other))
    assert not unsolved.same, "a changed input is a difference, also if nobody solved again"
    assert "**stale: job.yaml changed since the new plan was solved; solve again; the plans" in shown(unsolved)


@relaxed
@given(plans())
def test_a_plan_is_the_same_as_itself(plan: Plan) -> None:
    diff = diff_jobs(plan, plan)
    assert diff.same and not diff.decisions and not diff.inputs and not diff.predictions
    assert all(not each.changed for each in (*diff.effects, *diff.phases))


def finite_json(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) is not None


@settings(relaxed, max_examples=60)
@given(plans(), plans(), st.booleans())
def test_any_two_plans_have_a_difference_of_at_most_forty_lines_and_finite_json(a: Plan, b: Plan, full: bool) -> None:
    diff = diff_jobs(a, b)
    finite_json(diff.as_dict())
    report = job_report(diff, "plans/a.yaml", full=full)
    text = markdown(report)
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES and lines[0].startswith("<!-- rlplan diff")
    if not diff.same:
        assert "seconds per sample" in text and "USD per 1000 samples" in text
        tables = [line for line in lines if line.startswith("|")]
        assert all(line.endswith("|") for line in tables)
    if diff.decisions:
        assert diff.decisions[0].change.key in text
    assert len(markdown(one_plan_report(a, "a", True, NO_FILES)).splitlines()) <= MAX_LINES
