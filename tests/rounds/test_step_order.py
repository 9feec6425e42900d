"""Who takes turns in which order: in a step, beside engines that decode on, in a tail, and between jobs of a group."""

from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.device_ledger import KV_CACHE, DeviceTransition, Holder, engine_holder, trainer_holder
from rlplan.rounds.step_order import (
    to_decoding,
    to_giving,
    to_leaving,
    to_sending,
    to_starting,
    to_streaming,
    to_tail,
    to_training,
)

from .turn_taking import ALONE, LONG, SENDING, SHORT, STATES, TRAINER, TRAINING, devices, lead, take

OTHER = engine_holder("other", {"engine_weights": 30.0, KV_CACHE: 40.0})


def test_trainers_of_several_plans_leave_the_device_to_whose_turn_it_is():
    other = trainer_holder("another", 8.0, 16.0, 0.0, training=TRAINING)
    states = {"short": "awake", "trainer": "offloaded", "another": "loaded"}
    turns = to_training(devices([SHORT, TRAINER, other], capacity=200.0, states=states), "trainer")
    assert turns == [
        ("engine_sleeps", "short"), ("trainer_offloads", "another"), ("trainer_loads", "trainer"),
        ("trainer_trains", "trainer"),
    ]  # fmt: skip


def test_on_pools_of_their_own_engines_and_trainer_stay_as_they_are():
    apart = devices([SHORT], [ALONE])
    take(apart, [("engine_starts", "short"), ("trainer_starts", "trainer")])
    assert to_starting(apart) == to_sending(apart, "trainer", ["short"]) == []
    assert to_decoding(apart, ["short"]) == []
    assert lead(apart, to_training, "trainer") == [("trainer_trains", "trainer")]
    assert to_sending(apart, "trainer", ["short"]) == to_training(apart, "trainer") == []
    assert apart.states == {"short": "awake", "trainer": "training"}


def test_engines_on_a_pool_of_their_own_make_room_for_each_other():
    apart = devices([SHORT, LONG], [ALONE])
    for name in ("short", "long"):
        take(apart, [("engine_starts", name), ("engine_sleeps", name)])
    take(apart, [("trainer_starts", "trainer")])
    for wanted, other in (("short", "long"), ("long", "short"), ("long", "short")):
        taken = lead(apart, to_training, "trainer") + lead(apart, to_sending, "trainer", [wanted])
        taken += lead(apart, to_decoding, [wanted])
        assert apart.states[wanted] == "awake" and apart.states[other] == "asleep"
    assert taken == [], "the same engines decode again: they stay awake while the trainer trains"


def test_engines_beside_no_trainer_rank_stay_awake_while_it_trains():
    ledgers = devices([SHORT, TRAINER], [OTHER])
    start = ("engine_starts", "short"), ("engine_starts", "other"), ("engine_sleeps", "short")
    take(ledgers, [*start, ("trainer_starts", "trainer")])
    assert [turn.holder for turn in to_training(ledgers, "trainer")] == ["trainer"]
    assert to_sending(ledgers, "trainer", ["short", "other"]) == [
        ("trainer_sends", "trainer"), ("engine_wakes_weights", "short"),
    ]  # fmt: skip


# -- streaming ---------------------------------------------------------------------------------------------------------


def streamed(capacity):
    """Two devices, an engine that decodes on each, and a trainer on both."""
    states = {"short": "awake", "other": "awake", "trainer": "offloaded"}
    trainer = trainer_holder("trainer", 8.0, 16.0, 0.0, training=TRAINING, sending=SENDING)
    return devices([OTHER, trainer], [SHORT, trainer], capacity=capacity, always=5.0, states=states)


def test_a_trainer_streams_beside_engines_and_loads_its_moments_before_it_steps():
    ledgers = streamed(100.0)
    turns = to_streaming(ledgers, "trainer", ["short"])
    assert turns == [("engine_sleeps", "short"), ("trainer_streams", "trainer")]
    assert ledgers.could(*turns)
    take(ledgers, turns)
    # Parameters, as many bytes of gradients, and what is gathered: no moments.
    assert ledgers.held_bytes("GPU 0") == 5.0 + 70.0 + 8.0 + 8.0 + 4.0
    assert to_streaming(ledgers, "trainer", ["short"]) == []
    taken = lead(ledgers, to_training, "trainer")
    assert [event for event, _ in taken] == ["engine_sleeps", "trainer_loads", "trainer_trains"]


def test_a_trainer_that_would_not_fit_beside_engines_cannot_stream():
    ledgers = streamed(90.0)
    turns = to_streaming(ledgers, "trainer", ["short"])
    assert not ledgers.could(*turns) and ledgers.could(turns[0])


def test_another_trainer_leaves_before_one_streams():
    another = trainer_holder("another", 8.0, 16.0, 0.0)
    states = {"short": "awake", "trainer": "offloaded", "another": "loaded"}
    turns = to_streaming(devices([SHORT, TRAINER, another], capacity=200.0, states=states), "trainer", [])
    assert turns == [("trainer_offloads", "another"), ("trainer_streams", "trainer")]


def test_a_trainer_on_devices_of_its_own_streams_as_it_trains():
    own = devices([SHORT], [ALONE], states={"short": "awake", "trainer": "loaded"})
    assert to_streaming(own, "trainer", []) == [("trainer_trains", "trainer")]


# -- a round's tail ----------------------------------------------------------------------------------------------------

AWAKE = {"engine_weights": 30.0, KV_CACHE: 54.0}
FIRST, TAIL = ["a", "b", "c", "d"], ["tail 0", "tail 1"]


def stage(tails=1, room=10.0, away=(), own=False):
    """Four devices with an engine of TP 1 on each, engines of TP 2 on pairs of them, and a trainer on all, or on
    devices of its own. A round decodes on the engines of TP 1."""
    trainer = trainer_holder("trainer", 8.0, 16.0, room, training={"everything": 90.0}, sending=SENDING)
    if own:
        trainer = Holder("trainer", "trainer", {"training": {"everything": 90.0}, "loaded": STATES})
    names = [[name, *(t for pair, t in enumerate(TAIL[:tails]) if pair == n // 2)] for n, name in enumerate(FIRST)]
    holders = [[engine_holder(name, AWAKE) for name in here] + [trainer] * (not own) for here in names]
    found = devices(*holders, *([[trainer]] if own else []), always=6.0)
    for name in FIRST + TAIL[:tails]:  # as a fleet starts: one TP size after another
        if name == TAIL[0]:
            lead(found, to_starting)
        take(found, [("engine_starts", name)] if name not in away else [])
    lead(found, to_starting)
    take(found, [("trainer_starts", "trainer")])
    begin(found)
    return found


def begin(ledgers):
    lead(ledgers, to_sending, "trainer", FIRST)
    lead(ledgers, to_decoding, FIRST)


def change(ledgers, engines):
    return lead(ledgers, to_tail, engines) + lead(ledgers, to_decoding, engines)


def test_engines_of_the_round_sleep_before_the_tails_wake():
    ledgers = stage()
    assert change(ledgers, ["tail 0"]) == [
        ("engine_sleeps", "a"), ("engine_sleeps", "b"),
        ("engine_wakes_weights", "tail 0"), ("engine_wakes_kv", "tail 0"),
    ]  # fmt: skip
    assert ledgers.states == {
        "a": "asleep", "b": "asleep", "c": "awake", "d": "awake", "tail 0": "awake", "trainer": "offloaded",
    }  # fmt: skip
    assert change(ledgers, ["tail 0"]) == [], "whoever is there has no turn"


@given(
    tails=st.integers(1, 2), room=st.sampled_from([0.0, 10.0]), own=st.booleans(),
    away=st.sets(st.sampled_from(FIRST + TAIL), max_size=3), ended=st.sampled_from(["before", "loading", "after"]),
)  # fmt: skip
def test_whenever_a_tail_ends_update_and_next_round_find_their_devices(tails, room, own, away, ended):
    ledgers = stage(tails, room, away, own)
    engines = TAIL[:tails]
    if ended != "before":
        lead(ledgers, to_tail, engines)
        beside = {other for name in engines for other in ledgers.beside[name]} - set(engines)
        assert all(ledgers.states[name] in ("asleep", "absent", "offloaded") for name in beside)
    if ended == "after":
        lead(ledgers, to_decoding, engines)
        assert all(ledgers.states[name] == "awake" for name in engines if name not in away)
    lead(ledgers, to_training, "trainer")
    assert ledgers.states["trainer"] == "training"
    begin(ledgers)
    assert all(ledgers.states[name] == "awake" for name in FIRST if name not in away)
    assert all(ledgers.states[name] in ("asleep", "absent") for name in engines)


# -- jobs of a group, which have the same devices in turns -------------------------------------------------------------

CONTEXTS = 7.0


def job(moments_in_host=False):
    """A job with an engine on each of two devices, one of both, and a trainer on a device of another pool."""
    trainer = trainer_holder("trainer", 20.0, 40.0, 0.0, offload=moments_in_host, training={"everything": 90.0})
    awake = {"engine_weights": 30.0, KV_CACHE: 60.0}
    engines = [[engine_holder(name, awake) for name in (f"short {number}", "long")] for number in range(2)]
    found = devices(*engines, [trainer], always=CONTEXTS, shared=True)
    for name in ("short 0", "short 1", "long", "trainer"):
        if name == "long":
            lead(found, to_starting)
        take(found, [("trainer_starts" if name == "trainer" else "engine_starts", name)])
    lead(found, to_starting)
    return found


def crossed(ledgers, turns):
    """Take turns; returns each with its holder and the bytes that crossed the host link."""
    return [(turn.event, turn.holder, ledgers.take(turn).link_bytes) for turn in turns]


def leave(ledgers, phase):
    return crossed(ledgers, to_leaving(ledgers, phase))


def held(ledgers):
    """Bytes of the job on each device."""
    return [ledgers.held_bytes(device) - CONTEXTS for device in ledgers.devices]


def test_a_job_leaves_its_devices_at_the_end_of_each_turn():
    ledgers = job()
    assert held(ledgers) == [0.0, 0.0, 0.0], "a start is a turn as well"
    for engines in (["short 0", "short 1"], ["long"]):
        arriving = crossed(ledgers, to_sending(ledgers, "trainer", engines))
        assert arriving == [("engine_wakes_weights", name, 0.0) for name in engines]
        assert ledgers.states["trainer"] == "offloaded", "it sends from host memory: its devices may be another job's"
        waking = crossed(ledgers, to_decoding(ledgers, engines))
        assert waking == [("engine_wakes_kv", name, 0.0) for name in engines]
        assert held(ledgers) == [90.0, 90.0, 0.0]
        assert to_giving(ledgers, engines[:1]) == [("engine_sleeps", engines[0])]
        assert leave(ledgers, "rollout") == [("engine_sleeps", name, 0.0) for name in engines]
        assert held(ledgers) == [0.0, 0.0, 0.0]
        coming = crossed(ledgers, to_training(ledgers, "trainer"))
        assert coming == [("trainer_loads", "trainer", 60.0), ("trainer_trains", "trainer", 0.0)]
        assert held(ledgers) == [0.0, 0.0, 90.0], "no engine wakes in a turn for training"
        assert leave(ledgers, "train") == [("trainer_offloads", "trainer", 60.0)]
        assert held(ledgers) == [0.0, 0.0, 0.0]
    assert leave(ledgers, "rollout") == leave(ledgers, "train") == []


def test_moments_in_host_memory_cross_no_link_in_a_switch():
    ledgers = job(moments_in_host=True)
    assert crossed(ledgers, to_training(ledgers, "trainer"))[0] == ("trainer_loads", "trainer", 20.0)
    assert leave(ledgers, "train") == [("trainer_offloads", "trainer", 20.0)]


@given(
    jobs=st.integers(2, 3),
    turns=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["rollout", "train"])), max_size=12),
    dead=st.sampled_from([None, "short 0", "long", "trainer"]),
)
def test_jobs_of_a_group_never_hold_a_device_at_once(jobs, turns, dead):
    members = [job() for _ in range(jobs)]
    if dead is not None:
        members[0].take(DeviceTransition("trainer_ends" if dead == "trainer" else "engine_ends", dead))
    for number, phase in turns:
        own = members[number % jobs]
        if phase == "rollout":
            up = [name for name in ("short 0", "short 1") if own.states[name] != "absent"]
            lead(own, to_sending, "trainer", up)
            lead(own, to_decoding, up)
        elif own.states["trainer"] != "absent":
            lead(own, to_training, "trainer")
        for on_device in zip(*map(held, members), strict=True):
            assert sum(one > 0 for one in on_device) <= 1 and sum(on_device) + CONTEXTS <= 100.0
        leave(own, phase)
        assert held(own) == [0.0, 0.0, 0.0]
