"""Engines and trainers that share a device: no order that the ledger takes exceeds it, none that it refuses counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.device_holders import KV_CACHE, MOMENTS, PARAMETERS, engine_holder, staying, trainer_holder
from rlplan.rounds.device_ledger import EVENTS, DeviceLedger, DeviceLedgers, OutOfMemory, Turn, WrongTurn
from rlplan.rounds.step_order import step_moves, to_decoding, to_sending, to_starting, to_streaming, to_training

SHORT = engine_holder("short", {"engine_weights": 30.0, KV_CACHE: 40.0, "graphs": 2.0})
LONG = engine_holder("long", {"engine_weights": 15.0, KV_CACHE: 55.0, "graphs": 2.0})
STATES = {PARAMETERS: 8.0, MOMENTS: 16.0}
OTHER = engine_holder("other", {"engine_weights": 30.0, KV_CACHE: 40.0})
TRAINER = trainer_holder("trainer", STATES, {PARAMETERS: 8.0}, {"everything": 70.0}, {"gathered": 4.0})


def ledger(capacity=90.0, states=None, holders=(SHORT, LONG, TRAINER)):
    return DeviceLedger("GPU 0", capacity, holders, {"asleep": 5.0}, states)


def decoding(awake="short", **options):
    other = {"short": "long", "long": "short"}[awake]
    return ledger(states={awake: "awake", other: "asleep", "trainer": "offloaded"}, **options)


def events(moves):
    return [(move.turn.event, move.turn.holder) for move in moves]


def test_a_step_has_one_order_and_only_the_engines_of_the_next_layout_wake():
    device = decoding()
    moves, held = step_moves(device, "trainer", ["long"])
    assert events(moves) == [
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
    assert device.peak_bytes == 85.0


def test_engines_that_sleep_move_nothing_over_the_host_link_and_a_trainer_moves_what_does_not_stay():
    moves, _ = step_moves(decoding(), "trainer", ["short"])
    link = {move.turn.event: move.link_bytes for move in moves}
    mapped = {move.turn.event: move.mapped_bytes for move in moves}
    assert link == {event: 16.0 if event in ("trainer_loads", "trainer_sends") else 0.0 for event in link}
    assert mapped["engine_sleeps"] == 72.0
    assert (mapped["engine_wakes_weights"], mapped["engine_wakes_kv"]) == (32.0, 40.0)


def test_moments_that_live_in_host_memory_cross_the_link_in_the_update_and_not_between_turns():
    offloaded = trainer_holder("trainer", {PARAMETERS: 8.0, MOMENTS: 0.0}, {}, in_host={MOMENTS: 16.0})
    assert offloaded.on_host["training"] == {MOMENTS: 16.0}
    assert offloaded.on_host["offloaded"] == {MOMENTS: 16.0, PARAMETERS: 8.0}
    moves, _ = step_moves(decoding(holders=(SHORT, LONG, offloaded)), "trainer", ["short"])
    assert sum(move.link_bytes for move in moves) == 2 * 8.0


def test_a_turn_that_would_not_fit_is_refused_with_device_holder_and_bytes_and_changes_nothing():
    device = decoding()
    before = dict(device.states)
    with pytest.raises(OutOfMemory, match=r"GPU 0: trainer loads would take 1\.6e-08 GB more for trainer") as refused:
        device.take(Turn("trainer_loads", "trainer"))
    assert (refused.value.needed_bytes, refused.value.free_bytes) == (16.0, 5.0)
    assert device.states == before and device.peak_bytes == 85.0
    with pytest.raises(OutOfMemory, match=r"engine wakes weights .* for long"):
        device.take(Turn("engine_wakes_weights", "long"))


@pytest.mark.parametrize(
    ("event", "holder", "why"),
    [
        ("engine_wakes_kv", "long", "long is asleep"),
        ("trainer_trains", "trainer", "trainer is offloaded"),
        ("engine_starts", "short", "short is awake"),
        ("engine_sleeps", "trainer", "trainer is offloaded"),
        ("trainer_starts", "short", "short is awake"),
    ],
)
def test_a_turn_out_of_order_is_refused(event, holder, why):
    with pytest.raises(WrongTurn, match=why):
        decoding().take(Turn(event, holder))


def test_a_trainer_that_fits_beside_engines_stays_and_the_parameters_go_last():
    assert staying(STATES, 24.0) == STATES
    assert staying(STATES, 23.0) == {PARAMETERS: 8.0}
    assert staying(STATES, 7.0) == {}


def test_trainers_of_several_plans_leave_the_device_to_the_one_whose_turn_it_is():
    other = trainer_holder("other", STATES, {}, {"everything": 70.0})
    states = {"short": "awake", "trainer": "offloaded", "other": "loaded"}
    holders = (SHORT, TRAINER, other)
    beside = DeviceLedger("GPU 0", math.inf, holders).beside
    turns = to_training({h.name: h for h in holders}, states, beside, "trainer")
    assert [turn.event for turn in turns] == ["engine_sleeps", "trainer_offloads", "trainer_loads", "trainer_trains"]
    assert turns[1].holder == "other"


def test_an_engine_that_is_being_replaced_has_no_turn_and_comes_back_when_there_is_room():
    device = decoding()
    device.take(Turn("engine_ends", "short"))
    moves, _ = step_moves(device, "trainer", ["short"])
    assert not [move for move in moves if move.turn.holder == "short"]
    device.take(Turn("engine_starts", "short"))
    assert device.states["short"] == "awake"


def test_a_holder_is_in_one_state_on_all_its_devices_and_a_refusal_on_one_of_them_is_one_on_all():
    roomy, tight = ledger(capacity=200.0), DeviceLedger("GPU 1", 80.0, [SHORT, TRAINER])
    both = DeviceLedgers([roomy, tight])
    both.take(Turn("trainer_starts", "trainer"))
    with pytest.raises(OutOfMemory, match="GPU 1"):
        both.take(Turn("engine_starts", "short"))
    assert both.states == {"short": "absent", "long": "absent", "trainer": "loaded"}
    assert not both.fits(Turn("engine_starts", "short")) and both.fits(Turn("engine_starts", "long"))
    both.check_invariants()


sizes = st.floats(0, 50)
parts = st.fixed_dictionaries({"engine_weights": sizes, KV_CACHE: sizes})
states = st.fixed_dictionaries({PARAMETERS: sizes, MOMENTS: sizes})
turns = st.builds(Turn, st.sampled_from(sorted(EVENTS)), st.sampled_from(["short", "long", "trainer"]))


@given(parts, parts, states, sizes, sizes, st.floats(0, 150), st.lists(turns, max_size=30))
def test_no_order_that_is_taken_exceeds_the_capacity_and_a_refused_one_leaves_all_as_it_was(
    short, long, held, room, training, capacity, order
):
    trainer = trainer_holder("trainer", held, staying(held, room), {"everything": training})
    devices = DeviceLedgers(
        [DeviceLedger("GPU 0", capacity, [engine_holder("short", short), engine_holder("long", long), trainer])]
    )
    (device,) = devices.ledgers
    most = 0.0
    for turn in order:
        before, peak, fits = dict(device.states), device.peak_bytes, devices.fits(turn)
        try:
            devices.take(turn)
        except (OutOfMemory, WrongTurn):
            assert not fits and device.states == before and device.peak_bytes == peak
        else:
            assert fits
        devices.check_invariants()
        most = max(most, device.held_bytes)
        assert device.held_bytes <= capacity * (1 + 1e-9) and device.peak_bytes == most


@given(parts, parts, states, sizes, st.lists(st.sampled_from(["train", "send", "decode", "start"]), max_size=8))
def test_whatever_the_states_are_each_order_leads_to_its_end_within_what_the_fullest_phase_needs(
    short, long, held, training, goals
):
    """Memory for the largest of the phases is enough: no order has a peak between two phases."""
    trainer = trainer_holder("trainer", held, {}, {"everything": training})
    engines = {"short": engine_holder("short", short), "long": engine_holder("long", long)}
    sending = max(engine.device_bytes("loading") for engine in engines.values()) + trainer.device_bytes("sending")
    awake = max(engine.device_bytes("awake") for engine in engines.values())
    capacity = max(awake, trainer.device_bytes("loaded"), training, sending)
    now = {"short": "asleep", "long": "asleep", "trainer": "offloaded"}
    device = DeviceLedger("GPU 0", capacity, [*engines.values(), trainer], states=now)
    for number, goal in enumerate(goals):
        next_engine = ["short", "long"][number % 2]
        orders = {
            "train": lambda: to_training(device.holders, device.states, device.beside, "trainer"),
            "send": lambda name=next_engine: to_sending(
                device.holders, device.states, device.beside, "trainer", [name]
            ),
            "decode": lambda name=next_engine: to_decoding(device.holders, device.states, device.beside, [name]),
            "start": lambda: to_starting(device.holders, device.states, device.beside),
        }
        for turn in orders[goal]():
            device.take(turn)
        device.check_invariants()
        ends = {"train": "training", "send": "sending", "decode": "offloaded", "start": "offloaded"}
        assert device.states["trainer"] == ends[goal]
        if goal == "send":
            assert device.states[next_engine] == "loading"


def test_on_pools_of_their_own_engines_stay_awake_and_the_trainer_stays_loaded():
    alone = trainer_holder("trainer", STATES, STATES, {"everything": 70.0})
    apart = DeviceLedgers([DeviceLedger("GPU 0", 100.0, [SHORT]), DeviceLedger("GPU 1", 100.0, [alone])])
    apart.take(Turn("engine_starts", "short"))
    apart.take(Turn("trainer_starts", "trainer"))

    def now():
        return apart.holders, apart.states, apart.beside

    assert to_starting(*now()) == to_sending(*now(), "trainer", ["short"]) == to_decoding(*now(), ["short"]) == []
    (trains,) = to_training(*now(), "trainer")
    assert trains == Turn("trainer_trains", "trainer")
    apart.take(trains)
    assert to_sending(*now(), "trainer", ["short"]) == to_training(*now(), "trainer") == []
    assert apart.states == {"short": "awake", "trainer": "training"}


def test_engines_of_two_sizes_on_a_pool_of_their_own_make_room_for_each_other_and_not_for_the_trainer():
    alone = trainer_holder("trainer", STATES, STATES, {"everything": 70.0})
    apart = DeviceLedgers([DeviceLedger("GPU 0", 100.0, [SHORT, LONG]), DeviceLedger("GPU 1", 100.0, [alone])])
    for turn in ("short", "long"):
        apart.take(Turn("engine_starts", turn))
        apart.take(Turn("engine_sleeps", turn))
    apart.take(Turn("trainer_starts", "trainer"))
    for wanted, other in (("short", "long"), ("long", "short"), ("long", "short")):
        taken = []
        for order in (to_training, to_sending, to_decoding):
            names = {to_training: ["trainer"], to_sending: ["trainer", [wanted]], to_decoding: [[wanted]]}[order]
            for turn in order(apart.holders, apart.states, apart.beside, *names):
                apart.take(turn)
                taken.append(turn.event)
        assert apart.state(wanted) == "awake" and apart.state(other) == "asleep"
    assert "engine_sleeps" not in taken, "the same engines decode again: they stay awake while the trainer trains"


def test_engines_beside_no_trainer_rank_stay_awake_while_it_trains():
    devices = DeviceLedgers([DeviceLedger("GPU 0", 100.0, [SHORT, TRAINER]), DeviceLedger("GPU 1", 100.0, [OTHER])])
    for turn in (("engine_starts", "short"), ("engine_starts", "other"), ("engine_sleeps", "short")):
        devices.take(Turn(*turn))
    devices.take(Turn("trainer_starts", "trainer"))
    now = devices.holders, devices.states, devices.beside
    assert [turn.holder for turn in to_training(*now, "trainer")] == ["trainer"]
    sends = to_sending(*now, "trainer", ["short", "other"])
    assert [(turn.event, turn.holder) for turn in sends] == [
        ("trainer_sends", "trainer"), ("engine_wakes_weights", "short"),
    ]  # fmt: skip


def two_devices(capacity):
    """Two devices, an engine on each, and a trainer on both."""
    engines = [engine_holder(f"engine {n}", {"engine_weights": 30.0, KV_CACHE: 40.0}) for n in range(2)]
    trainer = trainer_holder("trainer", STATES, {}, {"everything": 70.0}, {"gathered": 4.0})
    states = {"engine 0": "awake", "engine 1": "awake", "trainer": "offloaded"}
    devices = [
        DeviceLedger(
            f"GPU {number}",
            capacity,
            (engine, trainer),
            {"asleep": 5.0},
            {n: states[n] for n in (engine.name, "trainer")},
        )
        for number, engine in enumerate(engines)
    ]
    return DeviceLedgers(devices)


def test_a_trainer_streams_beside_the_engines_that_stay_and_loads_its_moments_before_it_steps():
    ledgers = two_devices(100.0)

    def now():
        return ledgers.holders, ledgers.states, ledgers.beside

    turns = to_streaming(*now(), "trainer", ["engine 1"])
    assert [(turn.event, turn.holder) for turn in turns] == [
        ("engine_sleeps", "engine 1"),
        ("trainer_streams", "trainer"),
    ]
    assert ledgers.could(turns)
    for turn in turns:
        ledgers.take(turn)
    # Parameters, as many bytes of gradients, and what is gathered: no moments.
    assert ledgers.ledgers[0].held_bytes == 5.0 + 70.0 + 8.0 + 8.0 + 4.0
    assert to_streaming(*now(), "trainer", ["engine 1"]) == []
    turns = to_training(*now(), "trainer")
    assert [turn.event for turn in turns] == ["engine_sleeps", "trainer_loads", "trainer_trains"]
    for turn in turns:
        ledgers.take(turn)
    ledgers.check_invariants()


def test_whether_turns_could_be_taken_is_asked_without_a_trace():
    ledgers = two_devices(90.0)
    turns = to_streaming(ledgers.holders, ledgers.states, ledgers.beside, "trainer", ["engine 1"])
    before = [(dict(ledger.states), ledger.peak_bytes, ledger.held_bytes) for ledger in ledgers.ledgers]
    assert not ledgers.could(turns), "shards of the trainer do not fit beside the engine that stays"
    assert ledgers.could(turns[:1])
    assert [(dict(ledger.states), ledger.peak_bytes, ledger.held_bytes) for ledger in ledgers.ledgers] == before


def test_a_trainer_on_devices_of_its_own_streams_as_it_trains():
    trainer = trainer_holder("trainer", STATES, STATES)
    own = DeviceLedgers(
        [DeviceLedger("GPU 0", 90.0, (SHORT,), {}, {"short": "awake"}),
         DeviceLedger("GPU 1", 90.0, (trainer,), {}, {"trainer": "loaded"})]
    )  # fmt: skip
    (turn,) = to_streaming(own.holders, own.states, own.beside, "trainer", [])
    assert turn == Turn("trainer_trains", "trainer")
