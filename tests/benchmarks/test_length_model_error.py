"""The length model's benchmark on a file that is made up: its shape, its arithmetic, its refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.length_holdout import Rule, groups_of, observed
from benchmarks.length_model_error import main
from rlplan.profiles.length_trace import LengthRow, LengthTrace


def write(path: Path, prompts: int, samples: int, steps: tuple[int, ...] = (0,)) -> Path:
    rng = np.random.default_rng(0)
    places = 0.5 * rng.normal(size=prompts)
    lines = ["source,step,prompt_id,sample_id,response_tokens,reward"]
    for step in steps:
        for p in range(prompts):
            lengths = np.exp(6 - step / 1000 + places[p] + 0.5 * rng.normal(size=samples))
            lines += [f"toy,{step},p{p},{s},{int(x) + 1}," for s, x in enumerate(lengths)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_report_is_one_json_line_and_a_well_behaved_population_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.csv", 80, 4, (0, 100))
    assert main(["--trace", str(path), "--json", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert len(lines) == 1
    report = json.loads(lines[0])
    assert report["step_s_error"] < 0.08 and 0.75 < report["coverage"] < 1
    assert [p["step"] for p in report["populations"]] == [0, 100]
    population = report["populations"][0]
    assert (population["prompts_per_step"], population["samples_per_prompt"]) == (8, 4)
    assert population["by_fold"]["median"] >= 0 and population["deferred"]["observed_mean"] > 0
    moved = report["checkpoints"]["toy"]
    assert moved["drift_per_step"]["body"] == pytest.approx(-1e-3, abs=4 * moved["drift_per_step"]["body_error"])
    assert moved["history"]["log_rmse"] < moved["history"]["log_rmse_without"]
    assert main(["--trace", str(path), "--repeats", "1", "--prompts", "4", "--samples", "2"]) == 0
    assert "steps of 4 x 2" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.csv", 40, 3)
    out = []
    for _ in range(2):
        assert main(["--trace", str(path), "--json", "--repeats", "1"]) == 0
        out.append(capsys.readouterr().out)
    assert out[0] == out[1]


def test_what_cannot_be_used_is_told_in_one_line_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write(tmp_path / "small.csv", 6, 4)
    single = write(tmp_path / "single.csv", 40, 1)
    enough = write(tmp_path / "enough.csv", 40, 3)
    for arguments, complaint in (
        (["--trace", str(tmp_path / "none.csv")], "no such file"),
        (["--trace", str(small)], "at least 10 prompts"),
        (["--trace", str(single)], "at least 10 prompts"),
        (["--trace", str(enough), "--prompts", "20"], "lower --prompts"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert complaint in captured.err and len(captured.err.strip().split("\n")) == 1 and not captured.out


def test_a_population_of_one_length_is_reported_without_long_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flat.csv"
    rows = [f"toy,0,p{p},{s},7," for p in range(20) for s in range(3)]
    path.write_text("source,step,prompt_id,sample_id,response_tokens,reward\n" + "\n".join(rows), encoding="utf-8")
    assert main(["--trace", str(path), "--json", "--repeats", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step_s_error"] == 0 and report["coverage"] == 1
    assert "long_s" not in report["populations"][0]
    assert main(["--trace", str(path), "--repeats", "1"]) == 0


def test_statistics_of_a_step_are_those_of_its_groups() -> None:
    rule = Rule(prompts=4, samples=8, overhead_s=10.0, token_s=0.5, cap_tokens=100)
    assert rule.issued == 5
    longest = np.array([[4, 9, 2, 7, 30], [1, 2, 3, 4, 5]])
    found = rule.statistics(longest, cutoff=6)
    assert found["step_s"].tolist() == [14.5, 12.0]
    assert found["deferred"].tolist() == [2.0, 0.0]
    assert found["short_s"].tolist() == [14.5, 12.0], "the fourth of five to end"
    assert found["long_s"].tolist() == [25.0], "the second step has no long round"


def test_observed_steps_hold_real_groups_of_different_prompts() -> None:
    lengths = {"a": [1, 2, 3, 4, 99], "b": [10, 20], "c": [7]}
    rows = [LengthRow(p, 0, s, t, False, 0.0, 1) for p, own in lengths.items() for s, t in enumerate(own)]
    groups = groups_of(LengthTrace(rows), 2)
    assert {p: g.tolist() for p, g in groups.items()} == {"a": [[1, 2], [3, 4]], "b": [[10, 20]]}
    drawn = observed(list(groups.values()), Rule(1, 2, 0.0, 1.0, 100), 50, np.random.default_rng(0))
    assert {frozenset(step) for step in drawn.tolist()} == {frozenset({2, 20}), frozenset({4, 20})}
