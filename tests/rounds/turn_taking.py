"""Holders of devices, and turns that are taken one after another."""

from rlplan.rounds.device_holders import KV_CACHE, MOMENTS, PARAMETERS, engine_holder, trainer_holder
from rlplan.rounds.device_ledger import DeviceLedger, DeviceLedgers, Turn

STATES = {PARAMETERS: 8.0, MOMENTS: 16.0}
SHORT = engine_holder("short", {"engine_weights": 30.0, KV_CACHE: 40.0, "graphs": 2.0})
LONG = engine_holder("long", {"engine_weights": 15.0, KV_CACHE: 55.0, "graphs": 2.0})
TRAINER = trainer_holder("trainer", STATES, {PARAMETERS: 8.0}, {"everything": 70.0}, {"gathered": 4.0})
ALONE = trainer_holder("trainer", STATES, STATES, {"everything": 70.0})


def devices(*holders, capacity=100.0, always=0.0, states=None, **options):
    """Ledgers of devices with these holders on each, which are absent but for `states`."""
    of_each = [
        DeviceLedger(f"GPU {number}", capacity, here, {"always": always}, states) for number, here in enumerate(holders)
    ]
    return DeviceLedgers(of_each, **options)


def ask(order, ledgers, *whom):
    """The turns of an order of rounds/step_order.py from the states that are."""
    return order(ledgers.holders, ledgers.states, ledgers.beside, *whom)


def take(ledgers, turns):
    """Take turns; at no time is more held than there is. Returns each event with its holder."""
    taken = []
    for event, holder in turns:
        ledgers.take(Turn(event, holder))
        ledgers.check_invariants()
        taken.append((event, holder))
    return taken


def lead(ledgers, order, *whom):
    """Take the turns of an order."""
    return take(ledgers, ask(order, ledgers, *whom))
