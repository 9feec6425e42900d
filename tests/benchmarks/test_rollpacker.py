"""The published runs: reading figures and phases, calibration, quotas, the ablation's arithmetic."""

import json
from pathlib import Path

import pytest

from rlplan.benchmarks.rollpacker import quotas
from rlplan.benchmarks.rollpacker.case import Case, Figures, RoundPhases, read_case, round_phases
from rlplan.benchmarks.rollpacker.quotas import (
    PLAIN,
    Calibrated,
    Operated,
    OperatingPoint,
    QuotaRound,
    Sweep,
    ablation,
    rmse,
)
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import InputError
from rlplan.rounds.machines.events import Finished, Issue, Score, Scored
from rlplan.rounds.machines.race import RaceRound

CDF = [[10, 5.0], [100, 50.0], [400, 90.0]]
SERIES = {
    "fig2a_math": CDF,
    "fig2a_tail_note": "CDF at 0.4k: math 90; just below the 16k cap: math 98.50 -> rest sits at the cap",
    "fig9_14B_verl": [[1, 300.0], [2, 320.0]],
    "fig10c_seconds": {"14B": {"short": {"sync": 1.0, "rollout": 2.0, "reward": 3.0, "train": 4.0}}},
    "fig11_seconds": {
        "eta": [1.0, 1.25],
        "fixedP_vary_R": {"16k": [100, 90]},
        "fixedR_vary_P": {"16k": [100, 80]},
        "both_1.25": {"16k": 50},
    },
}


@pytest.fixture
def figures(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(SERIES))
    return Figures.read(path)


def engine(engines=2):
    return DecodeCost(EngineLayout(1, engines), 0.01, 1e-4, 1e-8, 0.0, 1e-6, 10**7, 512, 0.0, 0)


def case(**changes):
    fields = {
        "model": "Qwen2.5-14B", "gpus": 2, "rollout_tp": 1, "cap_tokens": 512, "prompts_per_step": 12,
        "samples_per_prompt": 4, "plain": {"rollout_s": 100.0, "reward_s": 10.0, "train_s": 20.0, "sync_s": 1.0},
    }  # fmt: skip
    return Case.model_validate({**fields, **changes})


def test_a_cdf_ends_at_the_cap_with_its_notes_share(figures):
    assert figures.tasks() == ("math",)
    assert figures.cdf("math") == [(10.0, 0.05), (100.0, 0.5), (400.0, 0.9), (16384.0, 0.985)]


def test_the_sensitivity_is_read_by_its_factors_and_caps(figures):
    assert figures.sensitivity(16384) == {(1.0, 1.0): 100, (1.0, 1.25): 90, (1.25, 1.0): 80, (1.25, 1.25): 50}
    assert figures.sensitivity(8192) == {}
    assert figures.step_s("14B") == {"verl": 310.0}


def test_what_is_not_at_hand_is_said_in_one_line(tmp_path, figures):
    with pytest.raises(InputError, match="--figures"):
        Figures.read(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="fig2a_math"):
        Figures.read(tmp_path / "bad.json")
    with pytest.raises(InputError, match="--phases"):
        read_case(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match=r"race\.long"):
        round_phases(case(), figures, "14B", "long")
    assert round_phases(case(), figures, "14B", "short") == RoundPhases(sync_s=1.0, reward_s=3.0, train_s=4.0)


@pytest.mark.parametrize("name", ["7B", "14B", "32B"])
def test_the_shipped_cases_load(name):
    path = Path(quotas.__file__).with_name(f"{name}.yaml")
    assert read_case(path).model.endswith(name)


def test_calibration_finds_what_the_published_seconds_were_made_with(figures, monkeypatch):
    monkeypatch.setattr(quotas, "_ROUNDS", 60)
    sweep = Sweep([figures.cdf("math")], engine(), 24, 8, 16384)
    true = Calibrated(rho=0.35, overhead_s=6.0, factor=1.7)
    settings = [PLAIN, (1.0, 1.25), (1.0, 1.5), (1.25, 1.0), (1.25, 1.25)]
    published = {factors: sweep.cycle_s(factors, true) for factors in settings}
    found = sweep.calibrate(published)
    assert found.rho == pytest.approx(true.rho, abs=0.03)
    assert found.overhead_s == pytest.approx(true.overhead_s, abs=1.5)
    points = [(*f, s, sweep.cycle_s(f, found)) for f, s in published.items() if f != PLAIN]
    assert rmse(points, published[PLAIN]) < 0.02


def test_a_round_with_quotas_trains_each_tasks_share_of_its_own_draws():
    races = [RaceRound([f"{task}{i}" for i in range(3)], 2, 2, 3, 100) for task in "ab"]
    machine = QuotaRound(races, 3)
    issued = [a for a in machine.start() if isinstance(a, Issue)]
    assert sorted({a.key.draw for a in issued}) == [0, 1, 2, 3, 4, 5]
    # All of task a is done before any of b: the round still waits for b.
    for issue in sorted(issued, key=lambda a: a.key):
        if machine.done:
            break
        for action in machine.handle(Finished(issue.key, 5, False)):
            assert not isinstance(action, Score) or action.key == issue.key
        machine.handle(Scored(issue.key, 1.0))
    assert machine.done
    assert [len(race.outcome().trained) for race in races] == [2, 2]


def test_the_operating_point_keeps_short_answers_and_defers_its_over_issue(figures):
    point = OperatingPoint(case(), figures, 0.2, rounds=12)
    found = point.operate(engine())
    assert point.long_share == pytest.approx(0.2)
    assert 0 < found.short_s < found.long_s
    assert 0.4 < found.length_ratio < 0.95


def test_the_ablation_adds_parts_up_to_the_whole():
    short = RoundPhases(sync_s=1.0, reward_s=2.0, train_s=15.0)
    long = RoundPhases(sync_s=1.0, reward_s=3.0, train_s=18.0)
    fixed = Operated(short_s=30.0, long_s=100.0, preemptions=0.0, length_ratio=0.7)
    steps = ablation(case(race={"other_s": 4.0}), 100.0, fixed, fixed, 0.2, short, long)
    assert steps["verl"] == 131.0
    assert steps["tail"] == pytest.approx(0.8 * (30 + 10 + 15 + 1) + 0.2 * (100 + 10 + 20 + 1) + 4)
    assert steps["reward"] == pytest.approx(steps["tail"] - 0.8 * 8 - 0.2 * 7)
    assert steps["planner"] == steps["reward"]
    assert steps["trainer"] == pytest.approx(steps["reward"] - 0.2 * 2)
