"""Where the answer stands in a response, and what the reward tells of its way to a verdict."""

import pytest

from rlplan.executor.rewards.kinds.math_reward import answer_of_response, judge, score, without_thinking
from rlplan.executor.rewards.sandbox.verdict import RowError
from rlplan.plans.answers.gold_math import gold_of


@pytest.mark.parametrize(
    ("response", "place", "text"),
    [
        ("\\boxed{41}. Wait. \\boxed{42}.", "the last box", "42"),
        ("\\boxed{\\frac{1}{2}} and <answer>3</answer>", "the last box", "\\frac{1}{2}"),
        ("\\boxed{7}. The box \\boxed{}", "the last box", "7"),
        ("\\boxed 5", "the last box", "5"),
        ("\\boxed{41}, no, \\boxed{4", "the last box", "41"),
        ("The answer is \\boxed{42", "a box that is not closed", ""),
        ("<answer>41</answer> <answer>42</answer> 43", "the last answer tag", "42"),
        ("<think>\\boxed{41}</think>\n<answer>42</answer>", "the last answer tag", "42"),
        ("The answer is 41. No: the answer is 42. I tried 3 ways.", "the last 'answer is'", "42"),
        ("**Answer:** 42 apples\n\nDone in 3 steps.", "the last 'answer is'", "42 apples"),
        ("6 * 7 = 42\n#### 42\nThat took 2 steps.", "the last 'answer is'", "42"),
        ("所以答案是42。共3步", "the last 'answer is'", "42"),
        ("답은 42입니다.", "the last 'answer is'", "42"),
        ("In all 3 steps, 6 * 7 = 42", "the last line", "42"),
        ("He has **42** of 100 apples.", "the last line", "42"),
        ("The answer is not 42.", "the last line", ""),
        ("The answer is either 42 or 43.", "the last line", ""),
        ("", "the last line", ""),
    ],
)
def test_one_place_of_a_response_counts(response, place, text):
    found = answer_of_response(response, gold_of("42"))
    assert (found.place, found.text.strip()) == (place, text)


@pytest.mark.parametrize(
    ("response", "left"),
    [
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>\n", "a\n"),
        ("<think>a", "a"),
        ("<think>a</think>b<|im_end|>", "b"),
        ("<think>a</think><|im_end|>", "a"),
    ],
)
def test_thinking_counts_only_where_nothing_follows(response, left):
    assert without_thinking(response) == left


def test_a_verdict_tells_each_step():
    verdict = judge("", "I think so. \\boxed{20 \\text{ m/s}}", "20 km/h")
    assert [name for name, _ in verdict.steps] == ["extracted", "parsed", "gold", "compared"]
    assert verdict.reward == 0.0 and "20" in verdict.why
    assert judge("", "\\boxed{20}", "20 km/h").why == "" and score("", "\\boxed{20}", "20 km/h") == 1.0


def test_a_row_that_cannot_be_scored_is_never_charged_to_a_response():
    with pytest.raises(RowError, match="list of 2"):
        score("", "5, 3", ["3", "5"])


@pytest.mark.parametrize(
    "hostile",
    [
        "(" * 5000,
        "2^" * 900 + "2",
        "9^{9^{9^{9}}}",
        "((10!)!)!",
        "5 " + "a" * 3000 + "1",
        "\\boxed{" * 800,
        "1e9999",
        "\\frac{0}{0}",
    ],
)
def test_hostile_answers_are_worth_nothing(hostile):
    for response in (hostile, f"\\boxed{{{hostile}}}", f"The answer is {hostile}"):
        assert [score("", response, answer) for answer in ("42", "x^2+1", "\\int_0^1 x dx", "stop", "B")] == [0.0] * 5
