"""The account of a round: each law, broken on purpose, is reported."""

from dataclasses import replace

import pytest

from rlplan.rounds.machines.events import Finished, SampleKey, Scored
from rlplan.rounds.machines.outcome import Fate, Outcome, TrainedGroup, has_signal
from rlplan.rounds.machines.race import RaceRound

GROUP = TrainedGroup("a", (SampleKey(0, 0), SampleKey(0, 2)), (5, 7), (0.0, 1.0))
# Three prompts were taken; "b" was drawn twice. Three samples were issued for "a", one of them surplus.
WHOLE = Outcome(
    trained=(GROUP,),
    prompts={Fate.TRAINED: ("a",), Fate.DEFERRED: ("b",), Fate.RETURNED: ("c",)},
    draws={Fate.TRAINED: 1, Fate.DEFERRED: 1, Fate.RETURNED: 1, Fate.DISCARDED: 1},
    samples={Fate.TRAINED: 2, Fate.SURPLUS: 1, Fate.DEFERRED: 2, Fate.RETURNED: 2, Fate.DISCARDED: 2},
    taken=("a", "b", "c"),
    issued_draws=4,
    issued_samples=9,
    group_size=2,
)
TWICE = WHOLE.prompts | {Fate.FILTERED: ("a",)}


@pytest.mark.parametrize(
    ("damage", "report"),
    [
        ({}, None),
        ({"taken": ("a", "b", "c", "d")}, "prompts taken and prompts settled differ: ['d']"),
        ({"taken": ("a", "b")}, "prompts taken and prompts settled differ: ['c']"),
        ({"issued_draws": 5}, "5 draws issued, 4 accounted for"),
        ({"issued_samples": 8}, "8 samples issued, 9 accounted for"),
        ({"trained": ()}, "trained groups and trained prompts differ"),
        ({"trained": (replace(GROUP, keys=GROUP.keys[:1]),)}, "a group was trained in part"),
        ({"trained": (replace(GROUP, keys=(SampleKey(0, 0),) * 2),)}, "a group was trained in part"),
        ({"trained": (replace(GROUP, keys=(*GROUP.keys, SampleKey(0, 1))),)}, "a group was trained in part"),
        # It was also taken twice, so that the counts agree.
        ({"prompts": TWICE, "taken": ("a", "a", "b", "c")}, "a prompt was settled twice in one round"),
    ],
)
def test_each_broken_law_is_reported_alone(damage, report):
    assert replace(WHOLE, **damage).check() == ([report] if report else [])


def test_a_machine_that_loses_a_draw_is_caught():
    class Forgetful(RaceRound):
        def outcome(self):
            self.draws.pop()
            return super().outcome()

    machine = Forgetful(["a", "b"], 2, 1, 1, 9)
    machine.start()
    for draw in range(2):
        machine.handle(Finished(SampleKey(draw, 0), 3, False))
        machine.handle(Scored(SampleKey(draw, 0), 1.0))
    with pytest.raises(AssertionError, match=r"prompts taken and prompts settled differ: \['b'\]"):
        machine.outcome()


def test_a_round_that_still_runs_has_no_outcome():
    machine = RaceRound(["a"], 1, 1, 1, 9)
    machine.start()
    with pytest.raises(AssertionError, match="still runs"):
        machine.outcome()


def test_what_holds_between_events_is_checked():
    machine = RaceRound(["a", "b"], 2, 2, 2, 9)
    machine.start()
    machine.check_invariants()
    first, second = machine.draws

    def broken(match):
        with pytest.raises(AssertionError, match=match):
            machine.check_invariants()

    first.rewards[0] = 1.0
    broken("reward of an unfinished sample")
    first.tokens[0] = 3
    broken("waits for a reward that it has")
    first.live.discard(0)
    machine.check_invariants()
    first.fate = Fate.TRAINED
    broken("still has live samples")
    first.live.clear()
    machine.done = True
    broken("a draw has no fate")
    second.fate = Fate.DEFERRED
    second.live.clear()
    broken("ready to be trained")
    second.fate, machine.done = None, False
    second.live.add(7)
    broken(None)


def test_a_group_has_signal_if_its_rewards_differ():
    assert has_signal([0.0, 0.0, 1.0])
    assert not has_signal([0.5, 0.5, 0.5]) and not has_signal([1.0])
