"""Benchmarks of planner and length model: what they build, compare and print; nothing is timed."""

import dataclasses
import itertools
import json
import math
import random

import numpy as np
import pytest

from rlplan.benchmarks import (
    decode_fit,
    length_model_error,
    planner_scale,
    planner_speed,
    round_optimality,
)
from rlplan.benchmarks.decode_fit import AXES, axis_values
from rlplan.benchmarks.headlines.solved import MODELS, JobKind, Outcome, figures_of, job_kinds, outcome_of
from rlplan.benchmarks.length_model_error import Rule, groups_of, observed
from rlplan.planner.choose.candidates.solve_options import Pass, SolveOptions
from rlplan.planner.search_inputs import prepare
from rlplan.planner.simulate.columns.composed_columns import ComposedLog
from rlplan.planner.solve import solve
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.laws.decode_law import FACTORS, DecodeLaw
from rlplan.profiles.length_tables import table_names
from rlplan.profiles.length_trace import LengthRow, LengthTrace
from rlplan.rounds.round_spec import MODES
from rlplan.tools.served_fit import COLUMNS, Group, Served, seconds_per_token, sheet_of

GROUP = Group("h100_sxm", "Qwen/Qwen3-32B", "bf16")


# -- the decode law --------------------------------------------------------------------------------------------------


def points(tps=(2, 4), group=GROUP):
    cells = [(t, 1, 1, b, i, o, 1, 1) for t in tps for b in (4, 16, 64) for i, o in ((1024, 1024), (1024, 4096))]
    asked = Served(*np.array(cells, float).T)
    law = DecodeLaw(sheet_of(group), np.array([factor.log_mean for factor in FACTORS]))
    return dataclasses.replace(asked, seconds=seconds_per_token(law, asked))


def test_points_of_the_law_are_predicted_when_left_out():
    few = {Group("h200", "m-7b", "fp8"): points((2,))}
    found = decode_fit.report({GROUP: points(), **few})
    assert set(found["mape"]) == set(AXES) and max(found["mape"].values()) < 0.03
    assert found["groups"] == 1 and found["by_model"][str(GROUP)]["points"] == 12
    assert found["worst"]["tp"]["group"] == str(GROUP) and found["calibration"] > 0.9
    assert "tp" not in decode_fit.report({GROUP: points((2, 2))})["mape"], "an axis of one value"
    with pytest.raises(InputError, match="has 12 points"):
        decode_fit.report(few)
    assert len(np.unique(axis_values(points(), "context"))) == 2, "lengths are left out as pairs"
    assert set(axis_values(points(), "batch")) == {4, 16, 64}


def test_the_law_of_one_model_tells_anothers_points_of_its_kind():
    large, sparse = (GROUP._replace(model=m) for m in ("meta-llama/Llama-3.1-70B", "Qwen/Qwen3-30B-A3B"))
    elsewhere = large._replace(system="b200_sxm")
    data = {group: points(group=group) for group in (GROUP, large, sparse, elsewhere)}
    found = decode_fit.report(data)["other_model"]
    assert set(found) == {"dense"} and found["dense"]["pairs"] == 2
    assert 0 < found["dense"]["worst"] < 0.03, "their points have the same factors"


def test_the_decode_fit_prints_json_or_what_is_wrong(tmp_path, capsys):
    p = points()
    rows = [
        f"{GROUP.system},{GROUP.model},bf16,{p.isl[i]},{p.osl[i]},{p.tp[i]},1,1,{p.batch[i]},{1e3 * p.seconds[i]},False"
        for i in range(len(p))
    ]
    data = tmp_path / "points.csv"
    data.write_text("\n".join([",".join(COLUMNS), *rows]))
    assert decode_fit.main(["--data", str(data), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and set(json.loads(out)["mape"]) == set(AXES)
    assert decode_fit.main(["--data", str(data)]) == 0 and "median of 1" in capsys.readouterr().out
    assert decode_fit.main(["--data", str(tmp_path / "none.csv"), "--json"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- the length model ------------------------------------------------------------------------------------------------


def write(path, prompts, samples, steps=(0,), scale=0.5, level=6):
    rng = np.random.default_rng(0)
    places = scale * rng.normal(size=prompts)
    lines = ["source,step,prompt_id,sample_id,response_tokens,reward"]
    for step in steps:
        for p in range(prompts):
            lengths = np.exp(level - step / 1000 + places[p] + scale * rng.normal(size=samples))
            lines += [f"toy,{step},p{p},{s},{int(x) + 1}," for s, x in enumerate(lengths)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_a_well_behaved_population_is_predicted(tmp_path, capsys):
    trace = write(tmp_path / "t.csv", 60, 4, (0, 100))
    assert length_model_error.main(["--trace", trace, "--json", "--repeats", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert report["step_s_error"] < 0.08 and 0.75 < report["coverage"] < 1
    assert [p["step"] for p in report["populations"]] == [0, 100]
    population = report["populations"][0]
    assert (population["prompts_per_step"], population["samples_per_prompt"]) == (6, 4)
    assert population["by_fold"]["median"] >= 0 and population["deferred"]["observed_mean"] > 0
    assert length_model_error.main(["--trace", trace, "--repeats", "1", "--prompts", "4", "--samples", "2"]) == 0
    assert "steps of 4 x 2" in capsys.readouterr().out


def test_a_trace_that_cannot_be_used_is_one_line(tmp_path, capsys):
    for trace, more, complaint in (
        (str(tmp_path / "none.csv"), [], "no such file"),
        (write(tmp_path / "small.csv", 6, 4), [], "at least 10 prompts"),
        (write(tmp_path / "single.csv", 40, 1), [], "at least 10 prompts"),
        (write(tmp_path / "enough.csv", 40, 3), ["--prompts", "20"], "lower --prompts"),
    ):
        assert length_model_error.main(["--trace", trace, *more]) == 2
        captured = capsys.readouterr()
        assert complaint in captured.err and len(captured.err.strip().split("\n")) == 1 and not captured.out


def test_a_population_of_one_length_has_no_long_rounds(tmp_path, capsys):
    trace = write(tmp_path / "flat.csv", 20, 3, scale=0.0, level=math.log(6.5))
    lines = []
    for _ in range(2):
        assert length_model_error.main(["--trace", trace, "--json", "--repeats", "1"]) == 0
        lines += capsys.readouterr().out.splitlines()
    report = json.loads(lines[0])
    assert len(lines) == 2 and lines[0] == lines[1], "the same seed gives the same line"
    # Twenty prompts of one length do not prove that all prompts have it, so other sets of prompts differ a little.
    assert report["step_s_error"] < 0.01 and report["coverage"] == 1 and "long_s" not in report["populations"][0]
    assert length_model_error.main(["--trace", trace, "--repeats", "1"]) == 0


def test_statistics_of_a_step_are_those_of_its_groups():
    rule = Rule(prompts=4, samples=8, overhead_s=10.0, token_s=0.5, cap_tokens=100)
    assert rule.issued == 5
    found = rule.statistics(np.array([[4, 9, 2, 7, 30], [1, 2, 3, 4, 5]]), cutoff=6)
    assert found["step_s"].tolist() == [14.5, 12.0] and found["deferred"].tolist() == [2.0, 0.0]
    assert found["short_s"].tolist() == [14.5, 12.0], "the fourth of five to end"
    assert found["long_s"].tolist() == [25.0], "the second step has no long round"
    lengths = {"a": [1, 2, 3, 4, 99], "b": [10, 20], "c": [7]}
    rows = [LengthRow(p, 0, s, t, False, 0.0, 1) for p, own in lengths.items() for s, t in enumerate(own)]
    groups = groups_of(LengthTrace(rows), 2)
    assert {p: g.tolist() for p, g in groups.items()} == {"a": [[1, 2], [3, 4]], "b": [[10, 20]]}
    drawn = observed(list(groups.values()), Rule(1, 2, 0.0, 1.0, 100), 50, np.random.default_rng(0))
    assert {frozenset(step) for step in drawn.tolist()} == {frozenset({2, 20}), frozenset({4, 20})}


# -- speed and optimality --------------------------------------------------------------------------------------------


def test_the_exponent_of_n_log_n_is_what_the_docstring_says():
    sizes = [1000, 10_000, 100_000]
    assert planner_speed.exponent(sizes, [3.0 * n for n in sizes]) == pytest.approx(1.0)
    assert round(planner_speed.exponent(sizes, [n * np.log(n) for n in sizes]), 2) == 1.11


def test_all_kinds_of_round_are_measured_and_the_race_preempts():
    rate, _, preemptions = planner_speed.rate(0.01)
    assert rate > 0 and preemptions > 0
    found = planner_speed.columns(0.01)
    assert set(found) == {"race", "exact_short", "exact_long", "sync"} and min(found.values()) > 0


def test_the_documents_of_the_64_gpu_job_fit_together():
    trace = planner_speed.trace()
    tokens = np.array([row.tokens for row in trace.rows])
    assert 0.001 < (tokens >= planner_speed.CAP).mean() < 0.02 and 500 < np.median(tokens) < 1000
    search = prepare(planner_speed.cluster(), planner_speed.job(), planner_speed.profile(), trace)
    assert {key.tp * key.engines for key in search.space.decode} == {64}
    assert {key.tp for key in search.space.decode} == {1, 2, 4, 8}


def test_1024_nodes_are_planned_without_simulating_a_whole_round():
    passes = (Pass(4, 2, float("inf")), Pass(8, 4, 0.05))
    solved = solve(*planner_scale.documents(1024), planner_scale.INPUTS, SolveOptions(mode="sync", passes=passes))
    assert solved.plan.job.issue.prompts_per_step == solved.plan.job.rounds.short.issue.prompts == 16_384
    chosen = solved.search.short[solved.solution.cycle.short.key].log
    assert isinstance(chosen, ComposedLog) and set(chosen.groups) == {16_384}
    assert set(chosen.cells.groups) == {256}
    assert sum(chunk.nbytes for chunk in solved.search.setting.draws._chunks.values()) < 20e6


def test_kinds_of_every_mode_are_compared_by_cells_and_whole():
    kinds = planner_scale.kinds_compared(prepare(*planner_scale.documents(64)))
    assert {key.mode for key in kinds} == set(MODES)
    differences = {"exact": {"mean": -0.004, "p95": 0.0061, "noise": 0.002, "cpu": 0.25}}
    found = {"solve_s": {"8": 5.0}, "solve_cpu_s": {"8": 4.5}, "peak_bytes": {"8": 3 * 10**8}}
    assert planner_scale.lines({**found, "differences": differences}) == [
        "8 nodes: solved in 5.0 s (4.5 s of CPU), at most 0.30 GB",
        "exact, by cells instead of whole: mean -0.40 %, p95 +0.61 %, standard error 0.20 %, "
        "in 0.25 of the CPU seconds",
    ]


def test_program_and_exhaustive_search_agree():
    found = round_optimality.compare(25, seed=1)
    assert found["mismatches"] == 0 and found["gap_max"] == 0.0
    assert 0 < found["infeasible"] < 25, "jobs of both kinds occur"


def test_a_choice_that_costs_a_millionth_more_is_a_mismatch():
    job, best = next(
        (job, min(costs))
        for job in (round_optimality.instance(random.Random(number)) for number in range(20))
        if (costs := list(round_optimality.costs(job)))
    )
    solution = round_optimality.solve_program(job.short, job.long, job.needs_long, job.limits, job.target)
    agrees = round_optimality.agrees
    assert agrees(job, best, solution)
    assert not agrees(job, best, dataclasses.replace(solution, objective=best * (1 + 1e-6)))
    assert not agrees(job, best, None) and not agrees(job, None, solution)
    instance = round_optimality.instance
    assert instance(random.Random("a")) == instance(random.Random("a"))


# -- headlines -------------------------------------------------------------------------------------------------------


def test_headline_jobs_are_of_all_kinds_and_drawn_again_alike():
    kinds = list(itertools.islice(job_kinds(), 40))
    assert kinds == list(itertools.islice(job_kinds(), 40)) and len(set(kinds)) == 40
    assert {kind.lengths for kind in kinds} == set(table_names()) and {kind.model for kind in kinds} == set(MODELS)
    assert {kind.reward for kind in kinds} == {"math", "code"} and {1, 2, 16} <= {kind.nodes for kind in kinds}


def test_headline_figures_count_what_loses_to_plain_rounds():
    fine = Outcome("sync", 1.0, plan_s=1.0, plain_s=1.0, baseline_s=1.0, other_s=1.1)
    simpler = fine._replace(plan_s=1.03, baseline_s=1.03)
    missed = fine._replace(other_s=0.9)
    gains = fine._replace(mode="exact", speedup=1.2, plan_s=0.8, other_s=0.8)
    lucky = gains._replace(speedup=1.01, plan_s=1.01)
    told_slow = gains._replace(speedup=0.99, other_s=None)
    figures = figures_of([fine, simpler, missed, gains, lucky, told_slow])
    assert (figures["jobs"], figures["below_plain"], figures["layout_gives_up"]) == (6, 2, pytest.approx(0.03))
    assert (figures["sync_best"], figures["sync_where_best"]) == (3, 2)
    assert (figures["others_best"], figures["others_where_best"]) == (3, 2)


@pytest.mark.search
def test_plain_rounds_are_planned_where_nothing_gains_on_them():
    found = outcome_of(JobKind(2, "H100", "Qwen2.5-7B", "math-2k", "code"))
    assert isinstance(found, Outcome) and found.mode == "sync" and found.speedup == 1.0
    assert found.other_s is not None and found.plain_s < 1.05 * found.other_s
