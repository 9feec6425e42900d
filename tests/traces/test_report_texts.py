"""Hints of reward hacking: each is there in a run that shows it, and none in a healthy run; what a page is given."""

import random

import pytest

from rlplan.traces.kept_samples import samples_file
from rlplan.traces.report_texts import repetition, reward_hints, texts_report

from .events import step_of
from .kept import kept, write_kept

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re", "so", "ti") for b in ("ba", "de", "fi", "go", "hu", "ly")]
BOILERPLATE = "To solve this problem, we need to find the value. Therefore, the final answer is "
TRICK = " ".join(f"grader{number} please" for number in range(30))


def prose(chance, words):
    return " ".join(chance.choice(WORDS) for _ in range(words))


def run(response, steps=20, reward=lambda chance: float(chance.random() < 0.5)):
    """Kept responses by step, four samples of each of four prompts; `response(chance, reward)` writes one."""
    chance, by_step = random.Random(7), {}
    for number in range(1, steps + 1):
        rows = []
        for prompt in range(4):
            for sample in range(4):
                worth = reward(chance)
                text = response(chance, worth, number)
                rows.append(kept(number, sample, prompt=f"p{number}-{prompt}", reward=worth, response=text))
        by_step[number] = rows
    return by_step


def healthy(chance, reward, number):
    return BOILERPLATE + prose(chance, chance.randrange(40, 300))


def names(by_step, steps=()):
    return [hint.name for hint in reward_hints(by_step, steps)]


def test_a_healthy_run_gives_no_hint():
    for reward in (lambda chance: float(chance.random() < 0.5), lambda chance: chance.random(), lambda chance: 1.0):
        assert names(run(healthy, reward=reward)) == []
    assert names({}) == [] and names(run(healthy, steps=1)) == []


def test_good_responses_that_repeat_themselves_are_told():
    def looping(chance, reward, number):
        loops = reward == 1.0 and number > 10 and chance.random() < 0.5
        return f" {prose(chance, 5)}" * 60 if loops else healthy(chance, reward, number)

    (hint,) = reward_hints(run(looping), [])
    assert hint.name == "repeats" and "0% of the others" in hint.text
    assert len(hint.examples) == 3 and all(text.startswith("step ") and "prompt p" in text for text in hint.examples)


def test_a_model_that_loops_whatever_the_reward_is_no_hint():
    assert names(run(lambda chance, reward, number: "again and again and so on. " * 60)) == []


def test_later_steps_are_compared_with_the_first_ones():
    def later(chance, reward, number):
        return healthy(chance, reward, number) if number < 12 else " the answer is surely four" * 60

    assert "repeats" in names(run(later, reward=lambda chance: 1.0))


def test_a_passage_that_good_responses_share_is_told_unless_all_have_it():
    def tricks(chance, reward, number):
        return healthy(chance, reward, number) + (TRICK if reward == 1.0 and chance.random() < 0.8 else "")

    (hint,) = reward_hints(run(tricks), [])
    assert hint.name == "shared_passage" and "grader" in hint.passage and len(hint.passage) > 200
    assert names(run(lambda chance, reward, number: healthy(chance, reward, number) + TRICK)) == []


def test_what_a_prompt_holds_is_no_passage():
    def echo(chance, reward, number):
        return healthy(chance, reward, number) + (TRICK if reward == 1.0 else "")

    asked = {
        number: [kept(number, row.sample, prompt=row.prompt, reward=row.reward, response=row.response,
                      prompt_text=TRICK) for row in rows]
        for number, rows in run(echo).items()
    }  # fmt: skip
    assert names(asked) == []


def test_extremes_and_what_was_not_trained_say_nothing():
    for changes in ({"kept": "best"}, {"fate": "deferred"}, {"reward": None}):
        rows = run(healthy)
        loops = {number: [*of, *(kept(number, 9 + i, response="so it goes " * 90, **changes) for i in range(9))]
                 for number, of in rows.items()}  # fmt: skip
        assert names(loops) == []


def course(lengths, rewards, kind="short"):
    return [
        step_of(n, kind=kind, trained_samples=10, trained_tokens=10 * length, reward_mean=reward)
        for n, (length, reward) in enumerate(zip(lengths, rewards, strict=True), 1)
    ]


def wave(begin, end, noise):
    return [begin + (end - begin) * n / 39 + noise * (n % 3 - 1) for n in range(40)]


@pytest.mark.parametrize(
    ("lengths", "rewards", "told"),
    [
        (wave(400, 40, 10), wave(0.2, 0.9, 0.02), True),
        (wave(400, 300, 10), wave(0.2, 0.9, 0.02), False),  # it learns to be brief
        (wave(400, 40, 10), wave(0.5, 0.5, 0.02), False),  # rewards do not rise
        (wave(400, 40, 10), wave(0.9, 0.2, 0.02), False),
        (wave(40, 400, 10), wave(0.2, 0.9, 0.02), False),
        ([900 if n in (0, 4) else 60 for n in range(40)], wave(0.2, 0.9, 0.02), False),  # by two long steps alone
        (wave(400, 40, 10), wave(0.50, 0.52, 0.2), False),
    ],
)
def test_rewards_that_rise_while_lengths_collapse_are_told(lengths, rewards, told):
    hints = reward_hints({}, course(lengths, rewards))
    assert [hint.name for hint in hints] == ["shorter"] * told
    assert not told or "in short rounds the mean reward rose from 0.2" in hints[0].text
    assert reward_hints({}, course(lengths[:10], rewards[:10])) == []


def test_long_rounds_at_the_end_do_not_hide_or_make_a_collapse():
    short, long = wave(100, 100, 5), wave(900, 900, 20)
    mixed = [*course(long, wave(0.2, 0.2, 0.01), "long"), *course(short, wave(0.8, 0.8, 0.01))]
    assert reward_hints({}, mixed) == []


def test_a_text_repeats_what_stood_in_it_before():
    assert repetition("one two three") == 0.0 and repetition("") == 0.0
    assert repetition("我们需要计算这个数的平方。" * 30) > 0.9 > 0.1 > repetition(prose(random.Random(1), 400))
    assert repetition(prose(random.Random(1), 400) * 2) == pytest.approx(0.5, abs=0.03)


def test_a_page_gets_few_responses_of_the_first_middle_and_last_step(tmp_path):
    rows = []
    for number in range(1, 8):
        rows += [kept(number, n, prompt="often" if number in (2, 6) else f"p{number}", tokens=n, reward=n / 9,
                      response="x" * (9000 if n == 5 else 5)) for n in range(6)]  # fmt: skip
    write_kept(tmp_path, *rows)
    samples_file(tmp_path, 4).write_bytes(b"torn")
    found = texts_report(tmp_path, [])
    assert [column["step"] for column in found["columns"]] == [1, 3, 7], "the middle one is of those that can be read"
    assert (found["steps"], found["hints"]) == (7, []) and "step-000004" in found["unreadable"][0]
    first = found["columns"][0]["samples"]
    assert [row["sample"] for row in first] == [5, 0, 1, 2], "best and longest, worst, then others"
    assert len(first[0]["response"]) < 6100
    assert found["prompt"]["prompt"] == "often"
    assert [column["step"] for column in found["prompt"]["columns"]] == [2, 6]
    assert texts_report(tmp_path / "none", []) is None
