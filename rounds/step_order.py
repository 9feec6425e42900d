"""The order in which engines and trainers take turns on their devices within one step.

    decoding      engines of the round's layout are awake, trainers are offloaded
    to_streaming  engines that were freed sleep -> the trainer's parameters come -> it trains while others decode
    to_tail       engines on the devices of the tail's sleep -> the tail's wake their weights; then weights arrive
    to_training   engines sleep -> the trainer's states come to the device -> it trains
    to_sending    its moments leave -> engines of the next layout wake their weights; then weights arrive
    to_decoding   the trainer's parameters leave -> KV caches wake
    to_giving     engines sleep whose devices another job gets, while others decode
    to_leaving    engines sleep, or the trainer's states leave: other jobs have the devices next

Each function says which turns lead there from the states that are (device_ledger.py); whoever is there already has no
turn. What frees memory comes before what takes it. Engines that are absent, since they are being replaced, have none.
`beside` has for each holder those that it shares a device with: nobody makes room for whom it shares no device with.
Engines and trainers on pools of their own so take no turns at all: engines stay awake, the trainer stays loaded. In a
co-execution group they leave at the end of each turn of the job, and a trainer sends from host memory: while engines
decode its devices may be another job's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .device_holders import Holder, State
from .device_ledger import DeviceLedger, DeviceLedgers, Move, Turn
from .permits.permit_events import PhaseName

Holders = Mapping[str, Holder]
States = Mapping[str, State]
Beside = Mapping[str, Collection[str]]


def to_training(holders: Holders, states: States, beside: Beside, trainer: str) -> list[Turn]:
    """Turns that lead to the training of `trainer`: who shares its devices sleeps or leaves, its states come."""
    turns = _sleep(holders, states, beside[trainer]) + _leave(holders, states, beside[trainer])
    if states[trainer] in ("offloaded", "sending", "streaming"):
        turns.append(Turn("trainer_loads", trainer))
    return turns if states[trainer] == "training" else [*turns, Turn("trainer_trains", trainer)]


def to_streaming(holders: Holders, states: States, beside: Beside, trainer: str, freed: Collection[str]) -> list[Turn]:
    """Turns after which `trainer` can train on the devices of the engines `freed`, while the other engines decode.

    A trainer that shares no device with engines trains as it does after the round.
    """
    if not beside[trainer]:
        return to_training(holders, states, beside, trainer)
    others = [name for name in beside[trainer] if holders[name].kind == "trainer"]
    turns = _sleep(holders, states, freed) + _leave(holders, states, others)
    return turns if states[trainer] == "streaming" else [*turns, Turn("trainer_streams", trainer)]


def to_tail(holders: Holders, states: States, beside: Beside, engines: Collection[str]) -> list[Turn]:
    """Turns after which `engines`, those of a round's tail, can receive weights in mid-round; `to_decoding` follows.

    Who shares their devices sleeps or leaves. The trainer sends from where its parameters are: no turn brings them.
    """
    others = {other for name in engines for other in beside[name]} - set(engines)
    turns = _sleep(holders, states, others) + _leave(holders, states, others)
    return turns + [Turn("engine_wakes_weights", name) for name in engines if states[name] == "asleep"]


def to_sending(holders: Holders, states: States, beside: Beside, trainer: str, engines: Collection[str]) -> list[Turn]:
    """Turns after which `engines` can receive the weights of `trainer`: its moments leave, then weights wake.

    Engines that share its devices and are awake sleep first: beside their KV caches there may be no room for the
    trainer's parameters. Engines that share no device with it receive weights as they are, awake or not, and where all
    of `engines` are such its moments stay.
    """
    loading = {name for name in engines if states[name] == "loading"}
    makes_room = {other for name in (*engines, trainer) for other in beside[name]}
    sleep = _sleep(holders, states, [n for n in makes_room - loading if n not in engines or n in beside[trainer]])
    turns = sleep + _leave(holders, states, makes_room - {trainer})
    elsewhere = {name for name, holder in holders.items() if holder.kind == "engine"} - set(engines)
    if set(beside[trainer]) - elsewhere and states[trainer] != "sending":
        turns.append(Turn("trainer_sends", trainer))
    asleep = {turn.holder for turn in sleep} | {name for name in engines if states[name] == "asleep"}
    return turns + [Turn("engine_wakes_weights", name) for name in engines if name in asleep]


def to_decoding(holders: Holders, states: States, beside: Beside, engines: Collection[str]) -> list[Turn]:
    """Turns after which `engines`, those that hold weights, can decode: trainers leave, then KV caches wake."""
    turns = _leave(holders, states, {other for name in engines for other in beside[name]})
    return turns + [Turn("engine_wakes_kv", name) for name in engines if states[name] == "loading"]


def to_leaving(holders: Holders, states: States, phase: PhaseName) -> list[Turn]:
    """Turns after which other jobs may have the devices of a phase: its engines sleep, or its trainers leave."""
    return (_sleep if phase == "rollout" else _leave)(holders, states, holders)


def to_giving(holders: Holders, states: States, engines: Collection[str]) -> list[Turn]:
    """Turns after which other jobs may have the devices of these engines, while the job's others decode on."""
    return _sleep(holders, states, engines)


def to_starting(holders: Holders, states: States, beside: Beside, all_shared: bool = False) -> list[Turn]:
    """Turns after which shared devices are as free as they get: their engines sleep, their trainers leave.
    `all_shared`: with other jobs, if with nobody else."""
    shared = [name for name in holders if beside[name] or all_shared]
    return _sleep(holders, states, shared) + _leave(holders, states, shared)


def start_of(name: str, holders: Holders) -> Turn:
    """The turn in which an engine or trainer starts."""
    return Turn("engine_starts" if holders[name].kind == "engine" else "trainer_starts", name)


def starting_together(ledgers: DeviceLedgers, names: Sequence[str], measuring: Collection[str]) -> list[str]:
    """Of engines and trainers that are to start, in order, those that can start side by side now: the first for which
    there is room, and others beside it; [] if there is room for none. Those that are `measuring` what they find free of
    their devices start there alone."""
    batch: list[str] = []
    for name in names:
        devices = {ledger.name for ledger in ledgers.where[name]}
        near = [other for other in batch if devices & {ledger.name for ledger in ledgers.where[other]}]
        alone = near and any(each in measuring for each in (name, *near))
        absent = [each for each in (*batch, name) if ledgers.state(each) == "absent"]
        if not alone and ledgers.could(start_of(each, ledgers.holders) for each in absent):
            batch.append(name)
    return batch


def _sleep(holders: Holders, states: States, among: Collection[str]) -> list[Turn]:
    engines = [name for name, holder in holders.items() if holder.kind == "engine" and name in among]
    return [Turn("engine_sleeps", name) for name in engines if states[name] in ("awake", "loading")]


def _leave(holders: Holders, states: States, among: Collection[str]) -> list[Turn]:
    trainers = [name for name, holder in holders.items() if holder.kind == "trainer" and name in among]
    gone = ("absent", "offloaded")
    return [Turn("trainer_offloads", name) for name in trainers if states[name] not in gone]


def step_moves(
    ledger: DeviceLedger, trainer: str, engines: Collection[str]
) -> tuple[list[Move], dict[str, dict[str, float]]]:
    """One step on one device, from decoding to decoding by `engines`: (what each turn does, bytes by what holds them in
    each phase). Phases: `rollout`, `train`, `sync` (while weights arrive).

    Raises OutOfMemory if the step does not fit on the device, WrongTurn unless the device is decoding.
    """
    held = {"rollout": ledger.parts}
    moves = [ledger.take(turn) for turn in to_training(ledger.holders, ledger.states, ledger.beside, trainer)]
    held["train"] = ledger.parts
    turns = to_sending(ledger.holders, ledger.states, ledger.beside, trainer, engines)
    moves += [ledger.take(turn) for turn in turns]
    held["sync"] = ledger.parts
    moves += [ledger.take(turn) for turn in to_decoding(ledger.holders, ledger.states, ledger.beside, engines)]
    return moves, held
