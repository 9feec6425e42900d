"""The seats and the turns of what is measured, before anything is started."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import rlplan
from rlplan.executor.memory.device_holds import trainer_name
from rlplan.executor.memory.device_turns import DeviceTurns
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.plans.schema.sections.layouts import EngineLayout, UpdateLayout
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.measure.measure_site import FIRST, Site, Subject, site_of
from rlplan.profiles.measure.measure_updates import moves_s
from rlplan.profiles.measure.turn_seconds import MOVES, TurnSeconds
from rlplan.rounds.device_holders import MOMENTS, PARAMETERS
from rlplan.rounds.device_ledger import DeviceLedgers, Turn
from rlplan.rounds.step_order import to_decoding, to_sending, to_starting, to_training

from .test_measured_layouts import pool

EXAMPLES = Path(rlplan.__file__).parent / "plans" / "examples"
LAYOUTS = [EngineLayout(1, 1), EngineLayout(1, 4), EngineLayout(2, 1), EngineLayout(2, 2)]
UPDATES = [UpdateLayout(dp=1, micro_batch_tokens=4096), UpdateLayout(dp=2, tp=2, micro_batch_tokens=4096, offload=True)]


def subject(pool: Pool, parameters: int = 10**9) -> Subject:
    path = EXAMPLES / "cpu-demo" / "job.yaml"
    job = load_job(path)
    return Subject(
        job.model_copy(update={"model": job.model.model_copy(update={"dtype": "bfloat16"})}),
        job_paths(job, path),
        "main",
        pool,
        parameters,
    )


def site(**sizes: int) -> Site:
    return site_of(subject(pool(2, nodes=2, memory_bytes=80 * 10**9), **sizes), LAYOUTS, UPDATES, 64)


def test_no_device_has_two_holders_in_a_phase_and_each_layout_of_trainers_has_its_ranks() -> None:
    placement = site().seats.placement
    assert not placement.double_booked()
    assert {name: len(seats) for name, seats in placement.trainers.items()} == {
        FIRST: 1, f"{FIRST} dp 2, tp 2, offload": 4,
    }  # fmt: skip
    assert [placement.engines[f"rollout-tp1-{number}"].node for number in range(4)] == [0, 0, 1, 1]


def test_what_the_pool_has_no_room_for_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="pool 'main' has no room for what is measured: 4 engines of TP 1 need"):
        site_of(subject(pool(2)), LAYOUTS, UPDATES, 64)


def take(ledgers: DeviceLedgers, turns: list[Turn]) -> None:
    for turn in turns:
        ledgers.take(turn)


def test_engines_of_each_size_and_every_trainer_in_turn_fit_on_a_gpu_that_holds_them() -> None:
    ledgers = site(parameters=3 * 10**9).turns.ledgers
    first, other = trainer_name(FIRST), trainer_name(f"{FIRST} dp 2, tp 2, offload")
    ledgers.take(Turn("trainer_starts", first))
    for tp in (1, 2):
        engines = [name for name in ledgers.where if name.startswith(f"rollout-tp{tp}")]
        take(ledgers, to_starting(ledgers.holders, ledgers.states, ledgers.beside))
        take(ledgers, [Turn("engine_starts", name) for name in engines])
        for _ in range(2):
            take(ledgers, to_training(ledgers.holders, ledgers.states, ledgers.beside, first))
            take(ledgers, to_sending(ledgers.holders, ledgers.states, ledgers.beside, first, engines))
            take(ledgers, to_decoding(ledgers.holders, ledgers.states, ledgers.beside, engines))
            ledgers.check_invariants()
        take(ledgers, [Turn("engine_ends", name) for name in engines])
    take(ledgers, to_starting(ledgers.holders, ledgers.states, ledgers.beside))
    take(ledgers, [Turn("trainer_starts", other)])
    take(ledgers, to_training(ledgers.holders, ledgers.states, ledgers.beside, other))
    ledgers.check_invariants()


class Ranks:
    """A trainer whose ranks note what they were told to keep on the device."""

    def __init__(self) -> None:
        self.kept: list[set[str]] = []

    async def start(self) -> None:
        self.kept.append({"start"})

    async def place(self, parts: dict[str, float]) -> None:
        await asyncio.sleep(0.001)
        self.kept.append({part for part, size in parts.items() if size})


def test_the_moves_of_a_trainer_are_timed_in_both_ways() -> None:
    found, ranks, log = site(parameters=3 * 10**9), Ranks(), TurnSeconds(FIRST)
    trainers: Any = {FIRST: ranks}
    timed = replace(found, turns=DeviceTurns(found.turns.ledgers, found.fleet, trainers))

    async def train_and_move() -> float:
        await timed.turns.start([], [FIRST])
        await timed.turns.to_training(log)
        return await moves_s(timed, log)

    seconds = asyncio.run(train_and_move())
    states = {PARAMETERS, MOMENTS}
    assert ranks.kept[-4:] == [states, set(), states, set()]
    assert seconds == log.of_step(("trainer_loads",)) + log.of_step(("trainer_offloads",))
    assert log.of_step(("trainer_offloads",)) > 0.0
    assert timed.turns.ledgers.state(trainer_name(FIRST)) == "offloaded"


def test_a_trainer_that_no_gpu_holds_is_refused_before_it_takes_memory() -> None:
    ledgers = site(parameters=8 * 10**9).turns.ledgers
    with pytest.raises(ValueError, match=r"GPU 0 of node 0: .* 96 GB more for trainer profile, and 76 GB are free"):
        ledgers.take(Turn("trainer_starts", trainer_name(FIRST)))


def test_cores_hold_no_bytes() -> None:
    on_cpu = replace(subject(pool(2, nodes=2, kind="cpu")))
    holders = site_of(on_cpu, LAYOUTS, UPDATES, 64).turns.ledgers.holders.values()
    assert not any(holder.on_device.get("awake") or holder.on_device.get("training") for holder in holders)


def test_the_seconds_of_a_step_are_the_medians_of_each_kind_of_turn() -> None:
    log = TurnSeconds("profile")
    for turn, seconds in (
        ("engine_sleeps", 0.1), ("engine_sleeps", 0.9), ("engine_sleeps", 0.2), ("engine_wakes_weights", 0.3),
        ("engine_wakes_kv", 0.4), ("trainer_loads", 2.0), ("trainer_offloads", 1.0),
    ):  # fmt: skip
        log.event("turn", turn=turn, whom=["a"], seconds=seconds)
    log.event("turn", turn="engine_sleeps", whom=[], seconds=99.0)
    assert log.of_engines == pytest.approx((0.2, 0.7)) and log.of_step(MOVES) == 3.0
