"""The order in which engines and trainers take turns on their devices within one step.

    decoding      engines of the round's layout are awake, trainers are offloaded
    to_training   engines sleep -> the trainer's states come to the device -> it trains
    to_sending    its moments leave -> engines of the next layout wake their weights; then weights arrive
    to_decoding   the trainer's parameters leave -> KV caches wake

Each function says which turns lead there from the states that are (device_ledger.py); whoever is there already has no
turn. What frees memory comes before what takes it. Engines that are absent, since they are being replaced, have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .device_ledger import DeviceLedger, Holder, Move, State, Turn

Holders = Mapping[str, Holder]
States = Mapping[str, State]


def to_training(holders: Holders, states: States, trainer: str) -> list[Turn]:
    """Turns that lead to the training of `trainer`: all engines sleep, other trainers leave, its states come."""
    turns = _sleep(holders, states, ()) + _leave(holders, states, trainer)
    if states[trainer] in ("offloaded", "sending"):
        turns.append(Turn("trainer_loads", trainer))
    return turns if states[trainer] == "training" else [*turns, Turn("trainer_trains", trainer)]


def to_sending(holders: Holders, states: States, trainer: str, engines: Collection[str]) -> list[Turn]:
    """Turns after which `engines` can receive the weights of `trainer`: its moments leave, then weights wake.

    Engines that are awake sleep first: beside their KV caches there may be no room for the trainer's parameters.
    """
    turns = _sleep(holders, states, [name for name in engines if states[name] == "loading"])
    turns += _leave(holders, states, trainer)
    if states[trainer] != "sending":
        turns.append(Turn("trainer_sends", trainer))
    return turns + [Turn("engine_wakes_weights", name) for name in engines if states[name] in ("awake", "asleep")]


def to_decoding(holders: Holders, states: States, engines: Collection[str]) -> list[Turn]:
    """Turns after which `engines`, those that hold weights, can decode: trainers leave, then KV caches wake."""
    turns = _leave(holders, states, None)
    return turns + [Turn("engine_wakes_kv", name) for name in engines if states[name] == "loading"]


def to_starting(holders: Holders, states: States) -> list[Turn]:
    """Turns after which devices are as free as they get: all engines sleep, all trainers leave."""
    return _sleep(holders, states, ()) + _leave(holders, states, None)


def _sleep(holders: Holders, states: States, but: Collection[str]) -> list[Turn]:
    engines = [name for name, holder in holders.items() if holder.kind == "engine" and name not in but]
    return [Turn("engine_sleeps", name) for name in engines if states[name] in ("awake", "loading")]


def _leave(holders: Holders, states: States, but: str | None) -> list[Turn]:
    trainers = [name for name, holder in holders.items() if holder.kind == "trainer" and name != but]
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
    moves = [ledger.take(turn) for turn in to_training(ledger.holders, ledger.states, trainer)]
    held["train"] = ledger.parts
    moves += [ledger.take(turn) for turn in to_sending(ledger.holders, ledger.states, trainer, engines)]
    held["sync"] = ledger.parts
    moves += [ledger.take(turn) for turn in to_decoding(ledger.holders, ledger.states, engines)]
    return moves, held
