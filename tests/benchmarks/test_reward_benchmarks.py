"""The benchmarks of reward workers and deadlines: what they build and how they read it; nothing is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.reward_tables import reward_table
from rlplan.rounds.timeouts import Execution

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import reward_deadlines

    return reward_deadlines


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import reward_workers

    return reward_workers


def test_one_sample_in_twenty_hangs_and_a_prompts_right_answers_take_the_same_in_every_round(deadlines: Any) -> None:
    rounds = [deadlines.mix(400, [0.1, 5.0], 0.1, seed) for seed in (1, 2)]
    hanging = sum(sample.seconds == float("inf") for samples in rounds for sample in samples)
    assert 0.04 < hanging / (2 * 400 * deadlines.SAMPLES_PER_PROMPT) < 0.06
    right = [{s.prompt: s.seconds for s in samples if s.right} for samples in rounds]
    both = right[0].keys() & right[1].keys()
    assert len(both) > 200 and all(right[0][prompt] == right[1][prompt] for prompt in both)
    assert set(right[0].values()) == {0.1 * deadlines.SCALE, 5.0 * deadlines.SCALE}


def test_a_right_answer_that_a_deadline_ended_is_counted_and_a_wrong_one_is_not(deadlines: Any) -> None:
    late = Execution("a", 1.0, False, True)
    answers = [deadlines.Sample("a", 1.0, right) for right in (True, False)]
    assert deadlines.Phase(1.0, tuple((sample, late) for sample in answers)).judged_wrong() == 1


def test_a_trace_without_seconds_is_told(deadlines: Any, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("prompt_hash,exec_s\na,0.5\nb,2\n")
    bad.write_text("prompt_hash,took\na,0.5\n")
    assert deadlines.read_trace(good) == [0.5, 2.0]
    with pytest.raises(InputError, match="needs a column exec_s"):
        deadlines.read_trace(bad)


def test_a_program_returns_the_responses_own_answer(workers: Any) -> None:
    text = workers.program("keys n1 =c ?", "n4 no n1 yes =c", workers.TESTS.format(keys={"n1": "=c"}))
    source = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(source.replace("time.process_time()", "1e9"), names)
    assert names["answer"]() == ("n1", "=c")
    exec(workers.TESTS.format(keys={"n1": "=c"}), names)
    with pytest.raises(AssertionError):
        exec(workers.TESTS.format(keys={"n1": "=d"}), names)
    assert text.startswith("n4 no n1 yes =c")


def test_right_answers_to_a_prompt_take_the_same_seconds_and_some_wrong_ones_never_end(workers: Any) -> None:
    tests = workers.TESTS.format(keys={"n1": "=c"})
    right = {
        workers.program("p", f"n{number} no n1 yes =c", tests).split("while")[1].split(":")[0] for number in range(9)
    }
    assert len(right) == 1
    wrong = [workers.program("p", f"n{number} no n1 yes =d", tests) for number in range(400)]
    hanging = sum("3600.0000" in text for text in wrong) / len(wrong)
    assert hanging == pytest.approx(reward_table("code").hanging, abs=0.05)


def test_the_best_is_among_the_counts_that_the_machine_has_cores_for(workers: Any) -> None:
    from rlplan.plans.schema.plan import load_plan

    plan = load_plan(ROOT / "plans" / "examples" / "cpu-demo.yaml")
    reward = plan.job.reward.model_copy(update={"workers": 2})
    plan = plan.model_copy(update={"job": plan.job.model_copy(update={"reward": reward})})
    found = workers.result(plan, {1: [3.0, 4.0, 9.0], 2: [2.0, 2.2, 2.1], 3: [1.0]}, cores=2)
    assert (found["planned"], found["best"], found["ratio"]) == (2, 2, 1.0)
    assert found["seconds"] == {"1": 4.0, "2": 2.1} and found["beyond"] == {"3": 1.0}
