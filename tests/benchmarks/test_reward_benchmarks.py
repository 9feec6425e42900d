"""The benchmarks of reward workers and deadlines: what they build and how they read it; nothing is timed."""

import pytest

from rlplan.benchmarks import reward_deadlines as deadlines
from rlplan.benchmarks import reward_workers as workers
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.reward_tables import reward_table
from rlplan.rounds.timeouts import RewardExecution

from ..traces.test_report import EXAMPLE


def test_one_sample_in_twenty_hangs_and_right_answers_repeat_their_seconds():
    rounds = [deadlines.mix(400, [0.1, 5.0], 0.1, seed) for seed in (1, 2)]
    hanging = sum(sample.seconds == float("inf") for samples in rounds for sample in samples)
    assert 0.04 < hanging / (2 * 400 * deadlines.SAMPLES_PER_PROMPT) < 0.06
    right = [{s.prompt: s.seconds for s in samples if s.right} for samples in rounds]
    both = right[0].keys() & right[1].keys()
    assert len(both) > 200 and all(right[0][prompt] == right[1][prompt] for prompt in both)
    assert set(right[0].values()) == {0.1 * deadlines.SCALE, 5.0 * deadlines.SCALE}


def test_only_a_right_answer_that_a_deadline_ended_is_counted():
    late = RewardExecution("a", 1.0, False, True)
    answers = [deadlines.Sample("a", 1.0, right) for right in (True, False)]
    assert deadlines.Phase(1.0, tuple((sample, late) for sample in answers)).judged_wrong() == 1


def test_a_trace_without_seconds_is_told(tmp_path):
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("prompt_hash,exec_s\na,0.5\nb,2\n")
    bad.write_text("prompt_hash,took\na,0.5\n")
    assert deadlines.read_trace(good) == [0.5, 2.0]
    with pytest.raises(InputError, match="needs a column exec_s"):
        deadlines.read_trace(bad)


def test_a_program_returns_the_responses_own_answer():
    text = workers.program("keys n1 =c ?", "n4 no n1 yes =c", workers.TESTS.format(keys={"n1": "=c"}))
    source = text.split("```python\n")[1].split("```")[0]
    names = {}
    exec(source.replace("time.process_time()", "1e9"), names)
    assert names["answer"]() == ("n1", "=c")
    exec(workers.TESTS.format(keys={"n1": "=c"}), names)
    with pytest.raises(AssertionError):
        exec(workers.TESTS.format(keys={"n1": "=d"}), names)
    assert text.startswith("n4 no n1 yes =c")


def test_right_answers_take_the_same_seconds_and_some_wrong_never_end():
    tests = workers.TESTS.format(keys={"n1": "=c"})
    right = {
        workers.program("p", f"n{number} no n1 yes =c", tests).split("while")[1].split(":")[0] for number in range(9)
    }
    assert len(right) == 1
    wrong = [workers.program("p", f"n{number} no n1 yes =d", tests) for number in range(400)]
    hanging = sum("3600.0000" in text for text in wrong) / len(wrong)
    assert hanging == pytest.approx(reward_table("code").hanging, abs=0.05)


def test_the_best_is_among_the_counts_that_the_machine_has_cores_for():
    reward = EXAMPLE.job.reward.model_copy(update={"workers": 2})
    plan = EXAMPLE.model_copy(update={"job": EXAMPLE.job.model_copy(update={"reward": reward})})
    found = workers.result(plan, {1: [3.0, 4.0, 9.0], 2: [2.0, 2.2, 2.1], 3: [1.0]}, cores=2)
    assert (found["planned"], found["best"], found["ratio"]) == (2, 2, 1.0)
    assert found["seconds"] == {"1": 4.0, "2": 2.1} and found["beyond"] == {"3": 1.0}
