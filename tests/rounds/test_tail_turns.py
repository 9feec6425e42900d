"""Engines of a round's tail take devices in mid-round: no device ever holds more than it has, and a step goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.device_holders import KV_CACHE, MOMENTS, PARAMETERS, engine_holder, staying, trainer_holder
from rlplan.rounds.device_ledger import DeviceLedger, DeviceLedgers, Holder, Turn
from rlplan.rounds.step_order import to_decoding, to_sending, to_starting, to_tail, to_training

CAPACITY, ASLEEP = 100.0, 6.0
AWAKE = {"engine_weights": 30.0, KV_CACHE: 54.0}
STATES = {PARAMETERS: 8.0, MOMENTS: 16.0}
FIRST, TAIL = ["a", "b", "c", "d"], ["tail 0", "tail 1"]


def stage(tails=1, room=10.0, away=(), own=False):
    """Four devices with an engine of TP 1 on each, engines of TP 2 on pairs of them, and a trainer on all, or on
    devices of its own."""
    trainer = trainer_holder("trainer", STATES, staying(STATES, room), {"everything": 90.0}, {"gathered": 4.0})
    if own:
        trainer = Holder("trainer", "trainer", {"training": {"everything": 90.0}, "loaded": STATES})
    ledgers = []
    for number, name in enumerate(FIRST):
        there = [engine_holder(name, AWAKE)]
        there += [engine_holder(t, AWAKE) for k, t in enumerate(TAIL[:tails]) if number // 2 == k]
        there += [] if own else [trainer]
        ledgers.append(DeviceLedger(f"GPU {number}", CAPACITY, there, {"asleep": ASLEEP}))
    if own:
        ledgers.append(DeviceLedger("trainers' GPU 0", CAPACITY, [trainer]))
    found = DeviceLedgers(ledgers)
    for name in FIRST + TAIL[:tails]:  # as a fleet starts: one TP size after another
        if name == TAIL[0]:
            take(found, to_starting(*now(found)))
        if name not in away:
            found.take(Turn("engine_starts", name))
    take(found, to_starting(*now(found)))
    found.take(Turn("trainer_starts", "trainer"))
    begin(found)
    return found


def now(ledgers):
    return ledgers.holders, ledgers.states, ledgers.beside


def take(ledgers, turns):
    """Take turns one after another; at no time is more held than there is."""
    for turn in turns:
        ledgers.take(turn)
        ledgers.check_invariants()
        assert all(ledger.held_bytes <= CAPACITY for ledger in ledgers.ledgers)
    return [(turn.event, turn.holder) for turn in turns]


def begin(ledgers):
    """A round on the engines of TP 1, from the weights on."""
    taken = take(ledgers, to_sending(*now(ledgers), "trainer", FIRST))
    return taken + take(ledgers, to_decoding(*now(ledgers), FIRST))


def change(ledgers, engines):
    return take(ledgers, to_tail(*now(ledgers), engines)) + take(ledgers, to_decoding(*now(ledgers), engines))


def test_engines_of_the_round_sleep_before_those_on_their_devices_wake_and_others_stay_as_they_are():
    ledgers = stage()
    assert change(ledgers, ["tail 0"]) == [
        ("engine_sleeps", "a"), ("engine_sleeps", "b"),
        ("engine_wakes_weights", "tail 0"), ("engine_wakes_kv", "tail 0"),
    ]  # fmt: skip
    assert ledgers.states == {
        "a": "asleep", "b": "asleep", "c": "awake", "d": "awake", "tail 0": "awake", "trainer": "offloaded",
    }  # fmt: skip
    assert change(ledgers, ["tail 0"]) == [], "whoever is there has no turn"


def test_whether_the_change_can_be_is_seen_before_anything_moves():
    ledgers = stage()

    def both():
        yield from to_tail(*now(ledgers), ["tail 0"])
        yield from to_decoding(*now(ledgers), ["tail 0"])

    before = ledgers.states
    assert ledgers.could(both()) and ledgers.states == before
    ledgers.ledgers[1].holders["tail 0"] = engine_holder("tail 0", {**AWAKE, KV_CACHE: 60.0})
    assert ledgers.could(to_tail(*now(ledgers), ["tail 0"])), "its weights would fit"
    assert not ledgers.could(both()) and ledgers.states == before, "and not its KV cache"


@given(
    tails=st.integers(1, 2), room=st.sampled_from([0.0, 10.0]), own=st.booleans(),
    away=st.sets(st.sampled_from(FIRST + TAIL), max_size=3), ended=st.sampled_from(["before", "loading", "after"]),
)  # fmt: skip
def test_whenever_the_round_ends_the_update_and_the_next_round_find_their_devices(
    tails: int, room: float, own: bool, away: set[str], ended: str
) -> None:
    ledgers = stage(tails, room, away, own)
    engines = TAIL[:tails]
    if ended != "before":
        take(ledgers, to_tail(*now(ledgers), engines))
        beside = {other for name in engines for other in ledgers.beside[name]} - set(engines)
        assert all(ledgers.state(name) in ("asleep", "absent", "offloaded") for name in beside)
    if ended == "after":
        take(ledgers, to_decoding(*now(ledgers), engines))
        assert all(ledgers.state(name) == "awake" for name in engines if name not in away)
    take(ledgers, to_training(*now(ledgers), "trainer"))
    assert ledgers.state("trainer") == "training"
    begin(ledgers)
    assert all(ledgers.state(name) == "awake" for name in FIRST if name not in away)
    assert all(ledgers.state(name) in ("asleep", "absent") for name in engines)


def test_an_engine_of_the_tail_that_is_up_without_weights_gets_them_as_it_is():
    ledgers = stage()
    take(ledgers, to_tail(*now(ledgers), ["tail 0"]))
    ledgers.take(Turn("engine_ends", "tail 0"))
    ledgers.take(Turn("engine_starts", "tail 0"))
    assert change(ledgers, ["tail 0"]) == []


def test_a_trainer_of_another_run_that_is_on_the_devices_leaves_them():
    ledgers = stage()
    ledgers.take(Turn("engine_sleeps", "a"))
    ledgers.take(Turn("engine_sleeps", "b"))
    ledgers.take(Turn("engine_sleeps", "c"))
    ledgers.take(Turn("engine_sleeps", "d"))
    ledgers.take(Turn("trainer_sends", "trainer"))
    assert ("trainer_offloads", "trainer") in change(ledgers, ["tail 0"])
