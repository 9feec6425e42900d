"""Engines and trainers that share a device: no order that the ledger takes exceeds it, none that it refuses counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.device_ledger import (
    EVENTS,
    KV_CACHE,
    MOMENTS,
    PARAMETERS,
    Device,
    DeviceLedger,
    DeviceTransition,
    OutOfMemory,
    WrongTransition,
    engine_holder,
    staying,
    trainer_holder,
)
from rlplan.rounds.step_order import step_moves, to_decoding, to_sending, to_starting, to_training

from .turn_taking import LONG, SHORT, STATES, TRAINER, devices, lead, take


def decoding(capacity=90.0, holders=(SHORT, LONG, TRAINER)):
    """A device on which the short engine decodes."""
    states = {"short": "awake", "long": "asleep", "trainer": "offloaded"}
    return DeviceLedger([Device("GPU 0", capacity, holders, {"asleep": 5.0})], states)


def test_a_step_has_one_order_and_wakes_the_next_engines_only():
    device = decoding()
    moves, held = step_moves(device, "trainer", ["long"])
    assert [move.transition for move in moves] == [
        ("engine_sleeps", "short"),
        ("trainer_loads", "trainer"),
        ("trainer_trains", "trainer"),
        ("trainer_sends", "trainer"),
        ("engine_wakes_weights", "long"),
        ("trainer_offloads", "trainer"),
        ("engine_wakes_kv", "long"),
    ]
    assert device.states == {"short": "asleep", "long": "awake", "trainer": "offloaded"}
    assert held["rollout"] == {"engine_weights": 30.0, KV_CACHE: 40.0, "graphs": 2.0, PARAMETERS: 8.0, "asleep": 5.0}
    assert held["train"] == {"everything": 70.0, "asleep": 5.0}
    assert held["sync"] == {"engine_weights": 15.0, "graphs": 2.0, PARAMETERS: 8.0, "gathered": 4.0, "asleep": 5.0}


def test_only_what_does_not_stay_crosses_the_host_link():
    moves, _ = step_moves(decoding(), "trainer", ["short"])
    link = {move.transition.event: move.link_bytes for move in moves}
    mapped = {move.transition.event: move.mapped_bytes for move in moves}
    assert link == {event: 16.0 if event in ("trainer_loads", "trainer_sends") else 0.0 for event in link}
    assert mapped["engine_sleeps"] == 72.0
    assert (mapped["engine_wakes_weights"], mapped["engine_wakes_kv"]) == (32.0, 40.0)
    device = decoding()
    assert device.take(DeviceTransition("trainer_ends", "trainer")).link_bytes == 0.0, "who ends loses its states"


def test_moments_that_live_in_host_memory_cross_no_link_between_turns():
    offloaded = trainer_holder("trainer", 8.0, 16.0, 0.0, offload=True)
    assert offloaded.on_host["training"] == {MOMENTS: 16.0}
    assert offloaded.on_host["offloaded"] == {MOMENTS: 16.0, PARAMETERS: 8.0}
    moves, _ = step_moves(decoding(holders=(SHORT, LONG, offloaded)), "trainer", ["short"])
    assert sum(move.link_bytes for move in moves) == 2 * 8.0


def test_a_turn_that_does_not_fit_is_refused_and_changes_nothing():
    device = decoding()
    before = dict(device.states)
    with pytest.raises(
        OutOfMemory, match=r"GPU 0: trainer loads would take 1\.6e-08 GB more for trainer, and 5e-09 GB"
    ):
        device.take(DeviceTransition("trainer_loads", "trainer"))
    with pytest.raises(OutOfMemory, match=r"engine wakes weights would take 1\.7e-08 GB more for long, and 5e-09 GB"):
        device.take(DeviceTransition("engine_wakes_weights", "long"))
    assert device.states == before
    device.take(DeviceTransition("engine_sleeps", "short"))
    device.check_invariants()
    with pytest.raises(ValueError, match="85 bytes are held of 84 from the start"):
        decoding(capacity=84.0)


@pytest.mark.parametrize(
    ("event", "holder", "why"),
    [
        ("engine_wakes_kv", "long", "long is asleep"),
        ("trainer_trains", "trainer", "trainer is offloaded"),
        ("engine_starts", "short", "short is awake"),
        ("engine_sleeps", "trainer", "trainer is offloaded"),
        ("trainer_starts", "short", "short is awake"),
        ("trainer_ends", "short", "short is awake"),
    ],
)
def test_a_turn_out_of_order_is_refused(event, holder, why):
    with pytest.raises(WrongTransition, match=why):
        decoding().take(DeviceTransition(event, holder))


def test_what_a_ledger_promises_is_checked():
    for change, match in (
        (lambda device: device.states.update(trainer="training"), "more than it has"),
        (lambda device: device.states.update(long="offloaded"), "long is offloaded"),
    ):
        device = decoding(capacity=100.0)
        change(device)
        with pytest.raises(AssertionError, match=match):
            device.check_invariants()


def test_a_trainer_that_fits_beside_engines_stays():
    assert staying(STATES, 24.0) == STATES
    assert staying(STATES, 23.0) == staying(STATES, 8.0) == {PARAMETERS: 8.0}, "the parameters go last"
    assert staying(STATES, 7.0) == {}


def test_an_engine_that_is_being_replaced_has_no_turn():
    device = decoding()
    device.take(DeviceTransition("engine_ends", "short"))
    moves, _ = step_moves(device, "trainer", ["short"])
    assert not [move for move in moves if move.transition.holder == "short"]
    device.take(DeviceTransition("engine_starts", "short"))
    assert device.states["short"] == "awake"


def test_a_holder_is_in_one_state_on_all_its_devices():
    both = DeviceLedger([Device("GPU 0", 200.0, [SHORT, LONG, TRAINER]), Device("GPU 1", 80.0, [SHORT, TRAINER])])
    both.take(DeviceTransition("trainer_starts", "trainer"))
    with pytest.raises(OutOfMemory, match="GPU 1"):
        both.take(DeviceTransition("engine_starts", "short"))
    assert both.states == {"short": "absent", "long": "absent", "trainer": "loaded"}, "refused on one, refused on all"
    assert not both.could(DeviceTransition("engine_starts", "short")) and both.could(
        DeviceTransition("engine_starts", "long")
    )
    assert both.grows(DeviceTransition("trainer_trains", "trainer")) and not both.grows(
        DeviceTransition("trainer_offloads", "trainer")
    )
    assert not both.grows(DeviceTransition("trainer_loads", "trainer")), "it is loaded"
    assert both.places == {"short": ["GPU 0", "GPU 1"], "long": ["GPU 0"], "trainer": ["GPU 0", "GPU 1"]}
    assert both.beside["long"] == {"short", "trainer"}


def test_engines_and_trainers_that_fit_side_by_side_take_no_turns():
    """By hand: 10 of the device are always held; the trainer trains with 60, and the engine decodes with 20 or 31."""
    trainer = trainer_holder("trainer", 10.0, 20.0, 10.0, training={"all": 60.0})
    other = trainer_holder("other", 5.0, 0.0, 5.0)
    small, large = (engine_holder(name, {"engine_weights": 10.0, KV_CACHE: kv}) for name, kv in (("s", 10), ("l", 21)))
    always = {"asleep": 10.0}
    states = {"s": "awake", "l": "asleep", "trainer": "loaded"}
    device = DeviceLedger([Device("GPU 0", 100.0, [small, large, trainer], always, 100.0)], states)
    assert device.beside == {"s": {"l"}, "l": {"s", "trainer"}, "trainer": {"l"}}
    moves, held = step_moves(device, "trainer", ["s"])
    assert [move.transition for move in moves] == [("trainer_trains", "trainer")] and device.states["s"] == "awake"
    assert held["train"] == {"all": 60.0, "engine_weights": 10.0, KV_CACHE: 10.0, "asleep": 10.0}
    assert not Device("GPU 0", 90.0, [small, trainer], always, 90.0).in_turns(small, trainer), "to the byte"
    beside_another = Device("GPU 0", 90.0, [small, trainer, other], always, 90.0)
    assert beside_another.in_turns(small, trainer), "another trainer keeps 5 there"
    assert Device("GPU 0", 100.0, [small, trainer], always).in_turns(trainer, small), "who is not told shares"


def test_a_refusal_says_why_turns_cannot_be_taken_and_changes_nothing():
    both = DeviceLedger([Device("GPU 0", 80.0, [SHORT, TRAINER])])
    refused = both.refusal([DeviceTransition("trainer_starts", "trainer"), DeviceTransition("engine_starts", "short")])
    assert isinstance(refused, OutOfMemory) and "for short" in str(refused)
    assert (
        set(both.states.values()) == {"absent"} and both.refusal([DeviceTransition("engine_starts", "short")]) is None
    )


sizes = st.floats(0, 50)
parts = st.fixed_dictionaries({"engine_weights": sizes, KV_CACHE: sizes})
turns = st.builds(DeviceTransition, st.sampled_from(sorted(EVENTS)), st.sampled_from(["short", "long", "trainer"]))


@given(parts, parts, sizes, sizes, sizes, sizes, st.floats(0, 150), st.lists(turns, max_size=30))
def test_no_order_that_is_taken_exceeds_the_capacity(short, long, parameters, moments, room, training, capacity, order):
    trainer = trainer_holder("trainer", parameters, moments, room, training={"everything": training})
    ledger = devices([engine_holder("short", short), engine_holder("long", long), trainer], capacity=capacity)
    for turn in order:
        before, fits = dict(ledger.states), ledger.could(turn)
        try:
            ledger.take(turn)
        except (OutOfMemory, WrongTransition):
            assert not fits and ledger.states == before
        else:
            assert fits
        ledger.check_invariants()
        assert ledger.held_bytes("GPU 0") <= capacity * (1 + 1e-9)


@given(parts, parts, sizes, sizes, sizes, st.lists(st.sampled_from(["train", "send", "decode", "start"]), max_size=8))
def test_each_order_leads_to_its_end_within_the_fullest_phase(short, long, parameters, moments, training, goals):
    """Memory for the largest of the phases is enough: no order has a peak between two phases."""
    room = -1.0  # nothing stays
    trainer = trainer_holder("trainer", parameters, moments, room, training={"everything": training})
    engines = {"short": engine_holder("short", short), "long": engine_holder("long", long)}
    sending = max(engine.device_bytes("loading") for engine in engines.values()) + trainer.device_bytes("sending")
    awake = max(engine.device_bytes("awake") for engine in engines.values())
    capacity = max(awake, trainer.device_bytes("loaded"), training, sending)
    now = {"short": "asleep", "long": "asleep", "trainer": "offloaded"}
    ledger = devices([*engines.values(), trainer], capacity=capacity, states=now)
    for number, goal in enumerate(goals):
        next_engine = ["short", "long"][number % 2]
        order, whom, end = {
            "train": (to_training, ["trainer"], "training"),
            "send": (to_sending, ["trainer", [next_engine]], "sending"),
            "decode": (to_decoding, [[next_engine]], "offloaded"),
            "start": (to_starting, [], "offloaded"),
        }[goal]
        lead(ledger, order, *whom)
        assert ledger.states["trainer"] == end
        assert goal != "send" or ledger.states[next_engine] == "loading"


def test_whether_turns_could_be_taken_is_asked_without_a_trace():
    ledger = devices([SHORT, TRAINER], [LONG, TRAINER], capacity=90.0)
    take(ledger, [("trainer_starts", "trainer"), ("trainer_offloads", "trainer"), ("engine_starts", "short")])
    before = dict(ledger.states)
    fits, too_much = DeviceTransition("engine_starts", "long"), DeviceTransition("trainer_loads", "trainer")
    assert ledger.could(fits) and not ledger.could(fits, too_much)
    assert not ledger.could(DeviceTransition("engine_sleeps", "long")), "it is absent"
    assert ledger.states == before
