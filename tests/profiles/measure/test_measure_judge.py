"""What a judge is asked while it is timed."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "template",
    [
        "Rate. {response}",
        "Rate. {prompt} {response}",
        "{answer} or {response}?",
        "{response} {prompt}",
        "{{}} {response}",
    ],
)
def test_no_two_questions_share_more_than_the_rubric(template: str) -> None:
    pytest.importorskip("ray")
    from rlplan.profiles.measure.scoring.measure_judge import numbered

    rubric = template.format(prompt="\0", response="\0", answer="\0").partition("\0")[0]
    asked = set()
    for number in range(3):
        prompt, response, answer = numbered(template, number, "p", "r", {"a": 1})
        asked.add(template.format(prompt=prompt, response=response, answer=answer)[len(rubric) :].split()[0])
    assert asked == {"0", "1", "2"}, "they differ in their first word after the rubric"
