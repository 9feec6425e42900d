"""Jobs of a co-execution group have the same devices in turns: between its turns nothing of a job is on them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rlplan.rounds.device_holders import KV_CACHE, MOMENTS, PARAMETERS, engine_holder, trainer_holder
from rlplan.rounds.device_ledger import DeviceLedger, DeviceLedgers, Turn
from rlplan.rounds.step_order import to_decoding, to_leaving, to_sending, to_starting, to_training

CAPACITY, CONTEXTS = 100.0, 7.0
AWAKE = {"engine_weights": 30.0, KV_CACHE: 60.0}
STATES = {PARAMETERS: 20.0, MOMENTS: 40.0}


def job(started: bool = True, moments_in_host: bool = False) -> DeviceLedgers:
    """A job with an engine on each of two devices, one of both, and a trainer on a device of another pool."""
    moments = {MOMENTS: STATES[MOMENTS]}
    states = {**STATES, MOMENTS: 0.0} if moments_in_host else STATES
    trainer = trainer_holder(
        "trainer", states, {}, {"everything": 90.0}, in_host=moments if moments_in_host else None
    )  # fmt: skip
    ledgers = [
        DeviceLedger(
            f"GPU {number}", CAPACITY,
            [engine_holder(name, AWAKE) for name in (f"short {number}", "long")], {"asleep": CONTEXTS},
        )
        for number in range(2)
    ]  # fmt: skip
    found = DeviceLedgers([*ledgers, DeviceLedger("trainers' GPU", CAPACITY, [trainer])], shared=True)
    for name in ("short 0", "short 1", "long", "trainer") if started else ():
        if name == "long":
            take(found, to_starting(*now(found), found.shared))
        found.take(Turn("trainer_starts" if name == "trainer" else "engine_starts", name))
        take(found, to_starting(*now(found), found.shared) if name in ("long", "trainer") else [])
    return found


def now(ledgers):
    return ledgers.holders, ledgers.states, ledgers.beside


def take(ledgers: DeviceLedgers, turns: Sequence[Turn]) -> list[tuple[str, str, float]]:
    """Take turns; returns each with its holder and the bytes that crossed the host link."""
    taken = []
    for turn in turns:
        taken.append((turn.event, turn.holder, ledgers.take(turn).link_bytes))
        ledgers.check_invariants()
    return taken


def of_job(ledgers: DeviceLedgers) -> list[float]:
    """Bytes of the job on each device."""
    return [ledger.held_bytes - sum(ledger.always.values()) for ledger in ledgers.ledgers]


def test_a_job_leaves_its_devices_at_the_end_of_each_turn_and_its_trainer_sends_from_host_memory():
    ledgers = job()
    assert of_job(ledgers) == [0.0, 0.0, 0.0], "a start is a turn as well"
    for engines in (["short 0", "short 1"], ["long"]):
        arriving = take(ledgers, to_sending(*now(ledgers), "trainer", engines))
        assert arriving == [("engine_wakes_weights", name, 0.0) for name in engines]
        assert ledgers.state("trainer") == "offloaded", "its devices may be another job's"
        waking = take(ledgers, to_decoding(*now(ledgers), engines))
        assert waking == [("engine_wakes_kv", name, 0.0) for name in engines]
        assert of_job(ledgers) == [90.0, 90.0, 0.0]
        leaving = take(ledgers, to_leaving(*now(ledgers)[:2], "rollout"))
        assert leaving == [("engine_sleeps", name, 0.0) for name in engines], "new weights come with the next turn"
        assert of_job(ledgers) == [0.0, 0.0, 0.0]
        coming = take(ledgers, to_training(*now(ledgers), "trainer"))
        assert coming == [("trainer_loads", "trainer", 60.0), ("trainer_trains", "trainer", 0.0)]
        assert of_job(ledgers) == [0.0, 0.0, 90.0], "no engine wakes in a turn for training"
        assert take(ledgers, to_leaving(*now(ledgers)[:2], "train")) == [("trainer_offloads", "trainer", 60.0)]
        assert of_job(ledgers) == [0.0, 0.0, 0.0]
    assert take(ledgers, [*to_leaving(*now(ledgers)[:2], "rollout"), *to_leaving(*now(ledgers)[:2], "train")]) == []


def test_moments_that_are_in_host_memory_throughout_cross_no_link_in_a_switch():
    ledgers = job(moments_in_host=True)
    assert take(ledgers, to_training(*now(ledgers), "trainer"))[0] == ("trainer_loads", "trainer", 20.0)
    assert take(ledgers, to_leaving(*now(ledgers)[:2], "train")) == [("trainer_offloads", "trainer", 20.0)]


@given(
    jobs=st.integers(2, 3),
    turns=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["rollout", "train"])), max_size=12),
    dead=st.sampled_from([None, "short 0", "long", "trainer"]),
)
def test_whatever_the_order_of_turns_and_whoever_died_jobs_never_hold_a_device_at_once(jobs, turns, dead):
    members = [job() for _ in range(jobs)]
    if dead is not None:
        members[0].take(Turn("trainer_ends" if dead == "trainer" else "engine_ends", dead))
    for number, phase in turns:
        own = members[number % jobs]
        if phase == "rollout":
            up = [name for name in ("short 0", "short 1") if own.state(name) != "absent"]
            take(own, to_sending(*now(own), "trainer", up))
            take(own, to_decoding(*now(own), up))
        elif own.state("trainer") != "absent":
            take(own, to_training(*now(own), "trainer"))
        held = [of_job(other) for other in members]
        assert all(sum(one > 0 for one in on_device) <= 1 for on_device in zip(*held, strict=True))
        assert all(sum(on_device) + CONTEXTS <= CAPACITY for on_device in zip(*held, strict=True))
        take(own, to_leaving(*now(own)[:2], phase))
        assert of_job(own) == [0.0, 0.0, 0.0]
