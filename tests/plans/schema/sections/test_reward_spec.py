"""The job's reward: one section, or a weighted list; each fault is told at its line."""

from __future__ import annotations

import pytest

from rlplan.plans.schema.job import Job
from rlplan.plans.schema.sections.reward_spec import RewardList, RewardSpec
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads

from ...conftest import JOB

START, END = JOB.index("reward:\n"), JOB.index("rollout:\n")
FIRST_LINE = JOB[:START].count("\n") + 2

SEVERAL = """\
  - {kind: format, pattern: 'a|b', deadline_s: 1.0, weight: 0.1}
  - {kind: math, name: right, deadline_s: 2.0, workers: 3}
  - {kind: length, target_tokens: 100, per_token: 0.001}
  - {kind: overlong, cache_tokens: 256, weight: 0.5}
  - {kind: judge, model: m/m, prompt: "Is {response} right?", scale: [0, 4], deadline_s: 5.0}
"""


def job(reward: str) -> Job:
    return loads(f"{JOB[:START]}reward:\n{reward}{JOB[END:]}", Job)


def test_a_list_is_read_with_its_weights_and_written_as_it_was() -> None:
    several = job(SEVERAL)
    reward = several.reward
    assert [(part.label, part.weight) for part in reward.parts] == [
        ("format", 0.1), ("right", 1.0), ("length", 1.0), ("overlong", 0.5), ("judge", 1.0)
    ]  # fmt: skip
    assert [part.label for part in reward.pooled] == ["right", "format"], "a pattern is the last of the pools"
    assert (reward.kind, reward.workers, reward.deadline_s) == ("math", 3, 2.0)
    assert reward.judge is not None and reward.judge.worth()["3"] == 0.75
    assert loads(dump(several), Job) == several
    assert isinstance(reward, RewardList) and "sections" not in dump(several)


def test_one_section_is_a_reward_of_one_part() -> None:
    plain = loads(JOB, Job).reward
    assert type(plain) is RewardSpec and plain.parts == plain.pooled == (plain,)
    assert plain.judge is None


@pytest.mark.parametrize(
    ("reward", "line", "says"),
    [
        (SEVERAL.replace("workers: 3", "wrkers: 3"), 1, "unknown key 'reward.1.wrkers'; did you mean 'workers'?"),
        (SEVERAL.replace("'a|b'", "'a|(b'"), 0, "reward.0.pattern: is no regular expression"),
        (SEVERAL.replace(", per_token: 0.001", ""), 2, "reward.2.kind: kind length needs the key per_token"),
        (SEVERAL.replace("256", "1025"), 3, "reward.3.cache_tokens: is 1025, more than a response may have (1024"),
        (SEVERAL.replace("100,", "1024,"), 2, "so that it never has an effect"),
        (SEVERAL.replace("{response}", "{respons}"), 4, "reward.4.prompt: has {respons}, and only"),
        (SEVERAL.replace("{response}", "{prompt}"), 4, "reward.4.prompt: does not hold {response}"),
        (SEVERAL.replace("{response}", "{response"), 4, "reward.4.prompt: has braces that do not fit"),
        (SEVERAL.replace("[0, 4]", "[4, 0]"), 4, "reward.4.scale: is [4, 0]; write the lower number first"),
        (SEVERAL.replace("scale: [0, 4], ", ""), 4, "reward.4.kind: kind judge needs either scale"),
        (SEVERAL.replace("kind: math, name: right", "kind: format, pattern: c"), 1, "second part called 'format'"),
        (SEVERAL.replace(", name: right, deadline_s: 2.0", ""), 1, "missing key 'reward.1.deadline_s'"),
        (SEVERAL + SEVERAL.splitlines()[-1].replace("judge,", "judge, name: two,") + "\n", 5, "is the second judge"),
        ("  {kind: math, deadline_s: 1.0, scale: [0, 1]}\n", 0, "scale has no effect with kind math; remove it"),
        ("  {kind: length, target_tokens: 5, per_token: 1.0, workers: 2}\n", 0, "workers has no effect"),
    ],
)  # fmt: skip
def test_a_fault_of_a_part_is_told_at_its_line(reward: str, line: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        job(reward)
    assert says in str(caught.value)
    assert caught.value.line == FIRST_LINE + line


@pytest.mark.parametrize("count", [0, 17])
def test_a_list_of_no_part_or_of_too_many_is_refused(count: int) -> None:
    parts = [{"kind": "math", "name": f"p{number}", "deadline_s": 1.0} for number in range(count)]
    with pytest.raises(InputError, match=f"is a list of {count} parts; write from 1 to 16"):
        job(f"  {parts}\n")
