"""Holders of devices, and turns that are taken one after another."""

from rlplan.rounds.device_ledger import (
    KV_CACHE,
    MOMENTS,
    PARAMETERS,
    Device,
    DeviceLedger,
    DeviceTransition,
    engine_holder,
    trainer_holder,
)

STATES = {PARAMETERS: 8.0, MOMENTS: 16.0}
SHORT = engine_holder("short", {"engine_weights": 30.0, KV_CACHE: 40.0, "graphs": 2.0})
LONG = engine_holder("long", {"engine_weights": 15.0, KV_CACHE: 55.0, "graphs": 2.0})
TRAINING, SENDING = {"everything": 70.0}, {"gathered": 4.0}
TRAINER = trainer_holder("trainer", 8.0, 16.0, 8.0, training=TRAINING, sending=SENDING)
ALONE = trainer_holder("trainer", 8.0, 16.0, 24.0, training=TRAINING)


def devices(*holders, capacity=100.0, always=0.0, states=None, **options):
    """The ledger of devices with these holders on each, which are absent but for `states`."""
    found = [Device(f"GPU {number}", capacity, here, {"always": always}) for number, here in enumerate(holders)]
    return DeviceLedger(found, states, **options)


def take(ledger, turns):
    """Take turns; at no time is more held than there is. Returns each event with its holder."""
    taken = []
    for event, holder in turns:
        ledger.take(DeviceTransition(event, holder))
        ledger.check_invariants()
        taken.append((event, holder))
    return taken


def lead(ledger, order, *whom):
    """Take the turns of an order of rounds/step_order.py from the states that are."""
    return take(ledger, order(ledger, *whom))
