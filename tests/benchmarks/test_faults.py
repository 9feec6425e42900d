"""What `benchmarks/faults` calls recovered, on traces written here; its runs are real and take minutes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

pytest.importorskip("torch")

from benchmarks.faults.campaign import draw
from benchmarks.faults.injectors import INJECTORS
from benchmarks.faults.verdict import off_policy, trained, wrong
from rlplan.traces.run_log import RunLog

SOUND = dict.fromkeys(
    ("lost", "double", "off_policy", "unrecovered", "left_processes", "weights_max_difference"), 0
) | {"faults": 40}


def test_all_kinds_of_fault_come_and_as_many_as_asked_for():
    drawn = draw(40, random.Random(1))
    assert len(drawn) == 40 and set(drawn) == set(INJECTORS)


@pytest.mark.parametrize("name", [name for name in SOUND if name != "faults"])
def test_a_run_that_lost_or_repeated_or_left_anything_did_not_recover(name):
    assert wrong(SOUND, 40) == []
    (word,) = wrong(SOUND | {name: 1}, 40)
    assert name in word
    assert wrong(SOUND | {"faults": 39}, 40) == ["39 of 40 faults struck"]


def test_samples_are_counted_by_prompt_and_place_and_off_policy_is_any_other_version():
    old, new = ["run:0", "run:0"], ["run:0", "run:1"]
    rows = [("a", old, "trained"), ("a", new, "trained"), ("b", old, "deferred")]
    samples = [{"prompt": prompt, "epoch": 0, "version": version, "fate": fate} for prompt, version, fate in rows]
    log = RunLog(steps=[{"step": 1, "on_policy_violations": 0}], samples={1: samples})
    assert trained(log) == Counter({("a", 0, 0): 1, ("a", 0, 1): 1})
    assert off_policy(log) == 1
