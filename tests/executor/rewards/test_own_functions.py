"""A user's own function is called the way that it is written, or is refused before anything starts."""

import math
from pathlib import Path

import numpy
import pytest

from rlplan.executor.rewards.functions import ScorerConfig, resolve
from rlplan.executor.rewards.kinds.function_reward import WrongReturn, reward_of
from rlplan.executor.rewards.scoring import score_one
from rlplan.executor.rewards.worker import RewardWorker
from rlplan.plans.files.reward_function import source_fault
from rlplan.plans.yaml.errors import InputError

HERE = Path(__file__).parent


def function(name):
    return resolve(ScorerConfig("function", f"own_functions:{name}", 5.0, str(HERE))).within(5.0)


CALLED = (
    "own", "only_two", "keyword_only", "awaited", "trl", "trl_of_messages", "trl_of_messages_by_a_helper",
    "trl_awaited", "verl", "verl_batch", "short", "async_instance", "instance", "method", "partly",
)  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_a_function_is_called_as_it_is_written(name):
    score = function(name)
    assert score("asked", "42", "42") == 1.0
    assert score("asked", "41", "42") == 0.0
    assert source_fault(HERE, f"own_functions:{name}") is None


def test_arguments_go_by_their_names():
    assert function("shuffled")("asked", "42", "42") == 2.0


def test_an_answer_that_is_an_object_has_columns_of_its_own():
    answer = {"answer": "42", "difficulty": 3, "completions": "ignored"}
    assert function("trl_of_a_column")("", "42", answer) == 3.0
    assert function("trl_of_a_column")("", "41", answer) == 0.0
    row = {"ground_truth": "42", "data_source": "gsm8k", "extra_info": {"split": "train"}}
    assert function("verl_by_source")("", "42", row) == 1.0
    with pytest.raises(NotImplementedError):
        function("verl_by_source")("", "42", "42")


@pytest.mark.parametrize(
    ("name", "says", "in_text"),
    [
        ("too_few", r"takes \(args, sample\), and is called with prompt, response and answer; slime's", True),
        ("verls_math", "would get the prompt as model_output", True),
        ("an_option", "would get the answer as strict", True),
        ("openrlhf", "as OpenRLHF calls it", True),
        ("wants_tokens", "nothing to give it as completion_ids", True),
        ("wants_a_router", "nothing to give it as reward_router_address", True),
        ("wants_more", r"takes \(prompt, response, answer, tokenizer\)", True),
        ("out_of_order", "would get the prompt as response", True),
        ("batch_in_order", "lists of many, and is called with one response at a time", True),
        ("yields", "is a generator", True),
        ("returns_nothing", "returns nothing", True),
        ("returns_other_keys", "a dict with the keys accuracy", True),
        ("Reward", "is a class", False),
        ("built_in", "takes", False),
        ("only_keywords", r"takes \(\*\*kwargs\)", False),
    ],
)
def test_what_cannot_be_called_is_refused_in_a_line(name, says, in_text):
    with pytest.raises(InputError, match=says) as refused:
        function(name)
    assert "\n" not in refused.value.message and f"own_functions:{name}" in refused.value.message
    found = source_fault(HERE, f"own_functions:{name}")
    assert (found is not None) == in_text and (found is None or found in refused.value.message)


def test_text_that_does_not_show_a_function_is_no_fault(tmp_path):
    (tmp_path / "torn.py").write_text("def score(:\n")
    (tmp_path / "wrapped.py").write_text("@wrap\ndef score(a): ...\n")
    (tmp_path / "later.py").write_text("def score(a): ...\nscore = other(score)\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("def score(a):\n    return 1\n")
    (tmp_path / "starred.py").write_text("from later import *\n")
    for path in ("torn:score", "wrapped:score", "later:score", "nowhere:score", "starred:other"):
        assert source_fault(tmp_path, path) is None, path
    assert "does not exist: wrapped.py has no other" in (source_fault(tmp_path, "wrapped:other") or "")
    assert "takes (a)" in (source_fault(tmp_path, "pack:score") or "")


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        (True, 1.0), (numpy.float32(0.5), 0.5), (numpy.array(0.5), 0.5), (numpy.array([0.5]), 0.5), ([2], 2.0),
        ((0.25, "why"), 0.25), ({"score": (1, 2)}, 1.0), ({"reward": 3}, 3.0), ({4}, 4.0), ([{"score": 1}], 1.0),
    ],
)  # fmt: skip
def test_what_stands_for_one_number_is_the_reward(returned, reward):
    assert reward_of(returned) == reward


@pytest.mark.parametrize("returned", [None, [None], [], [1.0, 2.0], {}, {"acc": 1}, "yes", "1.0", b"1", object(), ()])
def test_what_is_no_number_is_a_wrong_return(returned):
    with pytest.raises(WrongReturn, match="the reward function returned"):
        reward_of(returned)


def test_an_async_function_is_interrupted_and_called_again():
    score = function("awaited_for_ever")
    late = score_one(score, 0.2, "", "wait", "42")
    assert late.outcome in ("policy_timeout", "infra_failed") and "no reward within" in late.detail
    after = score_one(score, 5.0, "", "42", "42")
    assert (after.outcome, after.reward) == ("ok", 1.0)
    assert math.isnan(reward_of(float("nan"))), "a number, which the call's own check refuses"


def test_the_process_of_a_worker_calls_functions_of_others_too():
    for name in ("trl_awaited", "verl", "awaited_for_ever"):
        process = RewardWorker(ScorerConfig("function", f"own_functions:{name}", 5.0, str(HERE)))
        try:
            scored = process.score([("ask", "42", "42", 5.0), ("ask", "41", "42", 5.0)], 60.0)
        finally:
            process.kill()
        assert [(each.outcome, each.reward) for each in scored] == [("ok", 1.0), ("ok", 0.0)]
    unfit = RewardWorker(ScorerConfig("function", "own_functions:too_few", 5.0, str(HERE)))
    problem, failure, *_ = unfit.ready()
    assert failure is None and "takes (args, sample)" in (problem or "")
