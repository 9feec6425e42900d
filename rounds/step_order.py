"""The order in which engines and trainers come to their devices and leave them within one step.

    decoding      engines of the round's layout are awake, trainers are offloaded
    to_streaming  engines that were freed sleep -> the trainer's parameters come -> it trains while others decode
    to_tail       engines on the devices of the tail's sleep -> the tail's wake their weights; then weights arrive
    to_training   engines sleep -> the trainer's states come to the device -> it trains
    to_sending    its moments leave -> engines of the next layout wake their weights; then weights arrive
    to_decoding   the trainer's parameters leave -> KV caches wake
    to_giving     engines sleep whose devices another job gets, while others decode
    to_leaving    engines sleep, or the trainer's states leave: other jobs have the devices next

Each function returns the transitions that lead there from the states of a ledger (device_ledger.py); a holder that is
there already has none, and neither has an engine that is absent because it is being replaced. Transitions that free
memory come before those that take it. A holder makes room only for those with which it takes turns on a device
(`DeviceLedger.beside`): on pools of their own, engines stay awake and the trainer stays loaded. In a co-execution group
both leave at the end of each phase of the job, and a trainer sends from host memory: while engines decode, another job
may have its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .device_ledger import DeviceLedger, DeviceTransition, TransitionBytes
from .permits.permit_events import PhaseName

Order = Callable[[DeviceLedger], list[DeviceTransition]]
"""Which transitions are due, by the states of a ledger."""


def to_training(ledger: DeviceLedger, trainer: str) -> list[DeviceTransition]:
    """Transitions that lead to the training of `trainer`: others on its devices sleep or leave, its states come."""
    transitions = _sleep(ledger, ledger.beside[trainer]) + _leave(ledger, ledger.beside[trainer])
    if ledger.states[trainer] in ("offloaded", "sending", "streaming"):
        transitions.append(DeviceTransition("trainer_loads", trainer))
    return (
        transitions
        if ledger.states[trainer] == "training"
        else [*transitions, DeviceTransition("trainer_trains", trainer)]
    )


def to_streaming(ledger: DeviceLedger, trainer: str, freed: Collection[str]) -> list[DeviceTransition]:
    """Transitions after which `trainer` can train on the devices of the engines `freed` while other engines decode.

    A trainer that shares no device with engines trains as it does after the round.
    """
    if not ledger.beside[trainer]:
        return to_training(ledger, trainer)
    others = [name for name in ledger.beside[trainer] if ledger.holders[name].kind == "trainer"]
    transitions = _sleep(ledger, freed) + _leave(ledger, others)
    return (
        transitions
        if ledger.states[trainer] == "streaming"
        else [*transitions, DeviceTransition("trainer_streams", trainer)]
    )


def to_tail(ledger: DeviceLedger, engines: Collection[str]) -> list[DeviceTransition]:
    """Transitions after which `engines`, those of a round's tail, can receive weights in mid-round; then `to_decoding`.

    Others on their devices sleep or leave. The trainer sends its parameters from where they are.
    """
    others = {other for name in engines for other in ledger.beside[name]} - set(engines)
    transitions = _sleep(ledger, others) + _leave(ledger, others)
    return transitions + [
        DeviceTransition("engine_wakes_weights", name) for name in engines if ledger.states[name] == "asleep"
    ]


def to_sending(ledger: DeviceLedger, trainer: str, engines: Collection[str]) -> list[DeviceTransition]:
    """Transitions after which `engines` can receive the weights of `trainer`: its moments leave, then weights wake.

    Engines that share its devices and are awake sleep first: beside their KV caches there may be no room for the
    trainer's parameters. Engines that share no device with it receive weights as they are, awake or not; if all of
    `engines` are such, its moments stay.
    """
    loading = {name for name in engines if ledger.states[name] == "loading"}
    makes_room = {other for name in (*engines, trainer) for other in ledger.beside[name]}
    sleep = _sleep(ledger, [n for n in makes_room - loading if n not in engines or n in ledger.beside[trainer]])
    transitions = sleep + _leave(ledger, makes_room - {trainer})
    elsewhere = {name for name, holder in ledger.holders.items() if holder.kind == "engine"} - set(engines)
    if set(ledger.beside[trainer]) - elsewhere and ledger.states[trainer] != "sending":
        transitions.append(DeviceTransition("trainer_sends", trainer))
    asleep = {transition.holder for transition in sleep} | {name for name in engines if ledger.states[name] == "asleep"}
    return transitions + [DeviceTransition("engine_wakes_weights", name) for name in engines if name in asleep]


def to_decoding(ledger: DeviceLedger, engines: Collection[str]) -> list[DeviceTransition]:
    """Transitions after which `engines` that hold weights can decode: trainers leave, then KV caches wake."""
    transitions = _leave(ledger, {other for name in engines for other in ledger.beside[name]})
    return transitions + [
        DeviceTransition("engine_wakes_kv", name) for name in engines if ledger.states[name] == "loading"
    ]


def to_leaving(ledger: DeviceLedger, phase: PhaseName) -> list[DeviceTransition]:
    """Transitions after which other jobs may have the devices of a phase: its engines sleep, or its trainers leave."""
    return (_sleep if phase == "rollout" else _leave)(ledger, ledger.holders)


def to_giving(ledger: DeviceLedger, engines: Collection[str]) -> list[DeviceTransition]:
    """Transitions after which other jobs may have the devices of these engines, while the job's others decode on."""
    return _sleep(ledger, engines)


def to_starting(ledger: DeviceLedger) -> list[DeviceTransition]:
    """Transitions after which shared devices are as free as possible: their engines sleep, their trainers leave."""
    shared = [name for name in ledger.holders if ledger.beside[name] or ledger.shared]
    return _sleep(ledger, shared) + _leave(ledger, shared)


def start_of(ledger: DeviceLedger, name: str) -> DeviceTransition:
    """The transition by which an engine or trainer starts."""
    return DeviceTransition("engine_starts" if ledger.holders[name].kind == "engine" else "trainer_starts", name)


def starting_together(ledger: DeviceLedger, names: Sequence[str], measuring: Collection[str]) -> list[str]:
    """The engines and trainers, of those that are to start in order, that can start side by side now: the first for
    which there is room, and others beside it; [] if there is room for none. One that is `measuring` the free memory of
    its devices starts there alone."""
    batch: list[str] = []
    for name in names:
        devices = {device.name for device in ledger.where[name]}
        near = [other for other in batch if devices & {device.name for device in ledger.where[other]}]
        alone = near and any(each in measuring for each in (name, *near))
        absent = [each for each in (*batch, name) if ledger.states[each] == "absent"]
        if not alone and ledger.could(*(start_of(ledger, each) for each in absent)):
            batch.append(name)
    return batch


def _sleep(ledger: DeviceLedger, among: Collection[str]) -> list[DeviceTransition]:
    engines = [name for name, holder in ledger.holders.items() if holder.kind == "engine" and name in among]
    return [DeviceTransition("engine_sleeps", name) for name in engines if ledger.states[name] in ("awake", "loading")]


def _leave(ledger: DeviceLedger, among: Collection[str]) -> list[DeviceTransition]:
    trainers = [name for name, holder in ledger.holders.items() if holder.kind == "trainer" and name in among]
    gone = ("absent", "offloaded")
    return [DeviceTransition("trainer_offloads", name) for name in trainers if ledger.states[name] not in gone]


def step_moves(
    ledger: DeviceLedger, trainer: str, engines: Collection[str]
) -> tuple[list[TransitionBytes], dict[str, dict[str, float]]]:
    """One step on one device, from decoding to decoding by `engines`: (bytes of each transition, bytes by part in each
    phase). Phases: `rollout`, `train`, `sync` (while weights arrive).

    Raises OutOfMemory if the step does not fit on the device, WrongTransition unless the device is decoding.
    """
    (device,) = ledger.devices
    held = {"rollout": ledger.parts(device)}
    moves = [ledger.take(transition) for transition in to_training(ledger, trainer)]
    held["train"] = ledger.parts(device)
    moves += [ledger.take(transition) for transition in to_sending(ledger, trainer, engines)]
    held["sync"] = ledger.parts(device)
    moves += [ledger.take(transition) for transition in to_decoding(ledger, engines)]
    return moves, held
