"""What engines and trainers hold on a device and in host memory in each of their states (device_ledger.py).

The planner states it by its estimates and the executor by what it starts, through the same functions:

- an engine that sleeps has dropped its weights and its KV cache (vLLM's sleep level 2) and keeps no copy of either in
  host memory: new weights come with the next weight sync;
- a trainer that is offloaded leaves on the device what `staying` says. The rest of its parameters and moments is in
  host memory, and comes back for the next update; gradients are dropped after each update;
- while weights arrive a trainer has its parameters on the device, and of its moments what stays there anyway;
- while it trains beside engines that decode (it streams), it has parameters and gradients there, which are in float32
  both, and what it gathers of other ranks. On a device whose engine sleeps there is room for activations besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["absent", "awake", "asleep", "loading", "loaded", "training", "sending", "streaming", "offloaded"]
Parts = Mapping[str, float]
"""Bytes by what holds them."""

SLEEP_LEVEL = 2
"""vLLM's: 1 keeps a copy of the weights in host memory, 2 drops them."""

PARAMETERS, MOMENTS, KV_CACHE = "trainer_parameters", "trainer_optimizer", "kv_cache"
"""Names of the parts that come and go."""


@dataclass(frozen=True)
class Holder:
    """An engine or a trainer, as each of its devices sees it.

    Attributes:
        name: of the engine or the trainer.
        kind: which of the two it is.
        on_device: bytes on a device by state; nothing in a state that is not named.
        on_host: bytes in host memory by state, of what belongs to one device; a difference between two states crosses
            the device's host link.
    """

    name: str
    kind: Literal["engine", "trainer"]
    on_device: Mapping[State, Parts] = field(default_factory=dict)
    on_host: Mapping[State, Parts] = field(default_factory=dict)

    def device_bytes(self, state: State) -> float:
        """Bytes on a device in a state."""
        return sum(self.on_device.get(state, {}).values())

    @property
    def most_bytes(self) -> float:
        """Bytes on a device in the state in which it holds the most."""
        return max(map(self.device_bytes, self.on_device), default=0.0)

    def host_bytes(self, state: State) -> float:
        """Bytes in host memory in a state, for one device."""
        return sum(self.on_host.get(state, {}).values())


def staying(states: Parts, room_bytes: float) -> dict[str, float]:
    """Of a trainer's states on a device those that stay there while engines decode: parameters and moments if both fit
    into `room_bytes`, else the parameters if they do, else nothing."""
    if sum(states.values()) <= room_bytes:
        return dict(states)
    parameters = states[PARAMETERS]
    return {PARAMETERS: parameters} if parameters <= room_bytes else {}


def engine_holder(name: str, awake: Parts) -> Holder:
    """An engine that holds `awake` while it decodes, its cache under `KV_CACHE`."""
    loading = {part: size for part, size in awake.items() if part != KV_CACHE}
    return Holder(name, "engine", {"awake": awake, "loading": loading})


def trainer_holder(
    name: str,
    states: Parts,
    stays: Parts,
    training: Parts | None = None,
    sending: Parts | None = None,
    in_host: Parts | None = None,
) -> Holder:
    """A trainer by what it holds on one device, and in host memory for it.

    Args:
        states: parameters and moments that an update has on the device.
        stays: of these, what stays there while engines decode.
        training: all that it holds while it trains; None: `states`.
        sending: what it holds beside parameters while weights travel.
        in_host: moments that are in host memory throughout, updates included.
    """
    always = dict(in_host or {})
    moments = {part: size for part, size in states.items() if part == MOMENTS and part not in stays and size}
    gone = {part: size for part, size in states.items() if part == PARAMETERS and part not in stays}
    sent = {PARAMETERS: states[PARAMETERS], **(sending or {}), **stays}
    streams = {**sent, "trainer_gradients": states[PARAMETERS]}
    return Holder(
        name,
        "trainer",
        on_device={
            "loaded": states,
            "training": training or states,
            "sending": sent,
            "streaming": streams,
            "offloaded": stays,
        },
        on_host={
            "loaded": always,
            "training": always,
            "sending": always | moments,
            "streaming": always | moments,
            "offloaded": always | moments | gone,
        },
    )
