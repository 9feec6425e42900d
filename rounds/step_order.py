"""The order in which engines and trainers take turns on their devices within one step.

    decoding      engines of the round's layout are awake, trainers are offloaded
    to_streaming  engines that were freed sleep -> the trainer's parameters come -> it trains while others decode
    to_tail       engines on the devices of the tail's sleep -> the tail's wake their weights; then weights arrive
    to_training   engines sleep -> the trainer's states come to the device -> it trains
    to_sending    its moments leave -> engines of the next layout wake their weights; then weights arrive
    to_decoding   the trainer's parameters leave -> KV caches wake
    to_giving     engines sleep whose devices another job gets, while others decode
    to_leaving    engines sleep, or the trainer's states leave: other jobs have the devices next

Each function says which turns lead there from the states of a ledger (device_ledger.py); whoever is there already has
no turn. What frees memory comes before what takes it. Engines that are absent, since they are being replaced, have
none. Nobody makes room for whom it shares no device with in turns (`DeviceLedger.beside`).
Engines and trainers on pools of their own so take no turns at all: engines stay awake, the trainer stays loaded. In a
co-execution group they leave at the end of each turn of the job, and a trainer sends from host memory: while engines
decode its devices may be another job's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .device_ledger import DeviceLedger, DeviceMove, DeviceTurn
from .permits.permit_events import PhaseName

Order = Callable[[DeviceLedger], list[DeviceTurn]]
"""Which turns are due, by the states of a ledger."""


def to_training(ledger: DeviceLedger, trainer: str) -> list[DeviceTurn]:
    """Turns that lead to the training of `trainer`: who shares its devices sleeps or leaves, its states come."""
    turns = _sleep(ledger, ledger.beside[trainer]) + _leave(ledger, ledger.beside[trainer])
    if ledger.states[trainer] in ("offloaded", "sending", "streaming"):
        turns.append(DeviceTurn("trainer_loads", trainer))
    return turns if ledger.states[trainer] == "training" else [*turns, DeviceTurn("trainer_trains", trainer)]


def to_streaming(ledger: DeviceLedger, trainer: str, freed: Collection[str]) -> list[DeviceTurn]:
    """Turns after which `trainer` can train on the devices of the engines `freed`, while the other engines decode.

    A trainer that shares no device with engines trains as it does after the round.
    """
    if not ledger.beside[trainer]:
        return to_training(ledger, trainer)
    others = [name for name in ledger.beside[trainer] if ledger.holders[name].kind == "trainer"]
    turns = _sleep(ledger, freed) + _leave(ledger, others)
    return turns if ledger.states[trainer] == "streaming" else [*turns, DeviceTurn("trainer_streams", trainer)]


def to_tail(ledger: DeviceLedger, engines: Collection[str]) -> list[DeviceTurn]:
    """Turns after which `engines`, those of a round's tail, can receive weights in mid-round; `to_decoding` follows.

    Who shares their devices sleeps or leaves. The trainer sends from where its parameters are: no turn brings them.
    """
    others = {other for name in engines for other in ledger.beside[name]} - set(engines)
    turns = _sleep(ledger, others) + _leave(ledger, others)
    return turns + [DeviceTurn("engine_wakes_weights", name) for name in engines if ledger.states[name] == "asleep"]


def to_sending(ledger: DeviceLedger, trainer: str, engines: Collection[str]) -> list[DeviceTurn]:
    """Turns after which `engines` can receive the weights of `trainer`: its moments leave, then weights wake.

    Engines that share its devices and are awake sleep first: beside their KV caches there may be no room for the
    trainer's parameters. Engines that share no device with it receive weights as they are, awake or not, and where all
    of `engines` are such its moments stay.
    """
    loading = {name for name in engines if ledger.states[name] == "loading"}
    makes_room = {other for name in (*engines, trainer) for other in ledger.beside[name]}
    sleep = _sleep(ledger, [n for n in makes_room - loading if n not in engines or n in ledger.beside[trainer]])
    turns = sleep + _leave(ledger, makes_room - {trainer})
    elsewhere = {name for name, holder in ledger.holders.items() if holder.kind == "engine"} - set(engines)
    if set(ledger.beside[trainer]) - elsewhere and ledger.states[trainer] != "sending":
        turns.append(DeviceTurn("trainer_sends", trainer))
    asleep = {turn.holder for turn in sleep} | {name for name in engines if ledger.states[name] == "asleep"}
    return turns + [DeviceTurn("engine_wakes_weights", name) for name in engines if name in asleep]


def to_decoding(ledger: DeviceLedger, engines: Collection[str]) -> list[DeviceTurn]:
    """Turns after which `engines`, those that hold weights, can decode: trainers leave, then KV caches wake."""
    turns = _leave(ledger, {other for name in engines for other in ledger.beside[name]})
    return turns + [DeviceTurn("engine_wakes_kv", name) for name in engines if ledger.states[name] == "loading"]


def to_leaving(ledger: DeviceLedger, phase: PhaseName) -> list[DeviceTurn]:
    """Turns after which other jobs may have the devices of a phase: its engines sleep, or its trainers leave."""
    return (_sleep if phase == "rollout" else _leave)(ledger, ledger.holders)


def to_giving(ledger: DeviceLedger, engines: Collection[str]) -> list[DeviceTurn]:
    """Turns after which other jobs may have the devices of these engines, while the job's others decode on."""
    return _sleep(ledger, engines)


def to_starting(ledger: DeviceLedger) -> list[DeviceTurn]:
    """Turns after which shared devices are as free as they get: their engines sleep, their trainers leave."""
    shared = [name for name in ledger.holders if ledger.beside[name] or ledger.shared]
    return _sleep(ledger, shared) + _leave(ledger, shared)


def start_of(ledger: DeviceLedger, name: str) -> DeviceTurn:
    """The turn in which an engine or trainer starts."""
    return DeviceTurn("engine_starts" if ledger.holders[name].kind == "engine" else "trainer_starts", name)


def starting_together(ledger: DeviceLedger, names: Sequence[str], measuring: Collection[str]) -> list[str]:
    """Of engines and trainers that are to start, in order, those that can start side by side now: the first for which
    there is room, and others beside it; [] if there is room for none. Those that are `measuring` what they find free of
    their devices start there alone."""
    batch: list[str] = []
    for name in names:
        devices = {device.name for device in ledger.where[name]}
        near = [other for other in batch if devices & {device.name for device in ledger.where[other]}]
        alone = near and any(each in measuring for each in (name, *near))
        absent = [each for each in (*batch, name) if ledger.states[each] == "absent"]
        if not alone and ledger.could(*(start_of(ledger, each) for each in absent)):
            batch.append(name)
    return batch


def _sleep(ledger: DeviceLedger, among: Collection[str]) -> list[DeviceTurn]:
    engines = [name for name, holder in ledger.holders.items() if holder.kind == "engine" and name in among]
    return [DeviceTurn("engine_sleeps", name) for name in engines if ledger.states[name] in ("awake", "loading")]


def _leave(ledger: DeviceLedger, among: Collection[str]) -> list[DeviceTurn]:
    trainers = [name for name, holder in ledger.holders.items() if holder.kind == "trainer" and name in among]
    gone = ("absent", "offloaded")
    return [DeviceTurn("trainer_offloads", name) for name in trainers if ledger.states[name] not in gone]


def step_moves(
    ledger: DeviceLedger, trainer: str, engines: Collection[str]
) -> tuple[list[DeviceMove], dict[str, dict[str, float]]]:
    """One step on one device, from decoding to decoding by `engines`: (what each turn does, bytes by what holds them in
    each phase). Phases: `rollout`, `train`, `sync` (while weights arrive).

    Raises OutOfMemory if the step does not fit on the device, WrongTurn unless the device is decoding.
    """
    (device,) = ledger.devices
    held = {"rollout": ledger.parts(device)}
    moves = [ledger.take(turn) for turn in to_training(ledger, trainer)]
    held["train"] = ledger.parts(device)
    moves += [ledger.take(turn) for turn in to_sending(ledger, trainer, engines)]
    held["sync"] = ledger.parts(device)
    moves += [ledger.take(turn) for turn in to_decoding(ledger, engines)]
    return moves, held
