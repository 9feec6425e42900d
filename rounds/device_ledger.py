"""The ledger of the accelerators that engines and trainers share: who holds how many bytes, and what may change next.

Engines and trainers of a job take turns on the same devices. Each holder is in one state on all of its devices, which
says what it holds on each device and what in host memory meanwhile:

    engine    absent -> awake -> asleep -> loading -> awake ...     loading: weights, no KV cache
    trainer   absent -> loaded -> training -> sending -> offloaded -> loaded ...     sending: parameters, no moments
              offloaded -> streaming -> loaded ...     streaming: parameters and gradients, while engines decode

The planner states what is held by its estimates and the executor by what it starts, through the same functions:

- an engine that sleeps has dropped its weights and its KV cache (vLLM's sleep level 2) and keeps no copy of either in
  host memory: new weights come with the next weight sync;
- a trainer that is offloaded keeps on the device what `staying` says. The rest of its parameters and moments is in
  host memory, and comes back for the next update; gradients are dropped after each update;
- while weights are sent, a trainer has its parameters on the device, and of its moments only those that always stay;
- while it trains beside engines that decode (it streams), it has its parameters and gradients there, both in float32,
  and what it gathers from other ranks. On a device whose engine sleeps there is room for activations besides.

The ledger reads no clock and moves no byte. The executor asks it before memory is taken and reports to it after memory
was freed (executor/memory/device_turns.py); the planner prices the order of a step with it
(planner/costs/colocation.py) and takes its memory table from it (planner/costs/memory_table.py). So both have the same
order and the same bytes.

Invariants (`check_invariants`):
- what is held on a device never exceeds its capacity: an event that would exceed it is refused;
- a refused event changes nothing on any device;
- an event is accepted only in a state that it may follow: an engine gets its KV cache after its weights, a trainer
  trains after its states came to the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

State = Literal["absent", "awake", "asleep", "loading", "loaded", "training", "sending", "streaming", "offloaded"]
Parts = Mapping[str, float]
"""Bytes by what holds them."""

SLEEP_LEVEL = 2
"""vLLM's: 1 keeps a copy of the weights in host memory, 2 drops them."""

PARAMETERS, MOMENTS, KV_CACHE = "trainer_parameters", "trainer_optimizer", "kv_cache"
"""Names of the parts that are loaded and freed."""


@dataclass(frozen=True)
class Holder:
    """An engine or a trainer: what it holds on each of its devices.

    Attributes:
        name: of the engine or the trainer.
        kind: which of the two it is.
        on_device: bytes on a device by state; nothing in a state that is not named.
        on_host: bytes in host memory by state, for one device; the difference between two states crosses the device's
            host link.
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


def staying(states: Parts, room_bytes: float) -> Parts:
    """The states of a trainer that stay on a device while engines decode: parameters and moments if both fit into
    `room_bytes`, else the parameters alone if they fit, else nothing."""
    if sum(states.values()) <= room_bytes:
        return states
    parameters = states[PARAMETERS]
    return {PARAMETERS: parameters} if parameters <= room_bytes else {}


def engine_holder(name: str, awake: Parts) -> Holder:
    """An engine that holds `awake` while it decodes, its cache under `KV_CACHE`."""
    loading = {part: size for part, size in awake.items() if part != KV_CACHE}
    return Holder(name, "engine", {"awake": awake, "loading": loading})


def trainer_holder(
    name: str,
    parameters: float,
    moments: float,
    room_bytes: float,
    *,
    offload: bool = False,
    training: Parts | None = None,
    sending: Parts | None = None,
    kept: Parts = MappingProxyType({}),
    gradients: float | None = None,
) -> Holder:
    """A trainer's rank by what it holds on its device, and in host memory for it.

    Args:
        parameters, moments: bytes of its parameters, and of the optimizer's moments of those that are trained.
        room_bytes: bytes of the device that are free for these while engines decode (`staying`).
        offload: whether the moments are in host memory throughout, updates included.
        training: all that it holds while it trains; None: parameters and moments.
        sending: what it holds beside parameters while weights are sent.
        kept: what never leaves its device, beside these; `training` has it as well.
        gradients: bytes of its gradients; None: as many as of parameters, which are float32 then.
    """
    room_bytes -= sum(kept.values())
    states = {PARAMETERS: parameters, MOMENTS: 0.0 if offload else moments}
    stays, always = staying(states, room_bytes), {MOMENTS: moments} if offload else {}
    away = {part: size for part, size in states.items() if part == MOMENTS and part not in stays and size}
    gone = {part: size for part, size in states.items() if part == PARAMETERS and part not in stays}
    sent = {PARAMETERS: parameters, **(sending or {}), **stays}
    return Holder(
        name,
        "trainer",
        on_device={
            "loaded": {**states, **kept},
            "training": training or {**states, **kept},
            "sending": {**sent, **kept},
            "streaming": {**sent, "trainer_gradients": parameters if gradients is None else gradients, **kept},
            "offloaded": {**stays, **kept},
        },
        on_host={
            "loaded": always,
            "training": always,
            "sending": always | away,
            "streaming": always | away,
            "offloaded": always | away | gone,
        },
    )


Event = Literal[
    "engine_starts",
    "engine_sleeps",
    "engine_wakes_weights",
    "engine_wakes_kv",
    "engine_ends",
    "trainer_starts",
    "trainer_loads",
    "trainer_trains",
    "trainer_sends",
    "trainer_streams",
    "trainer_offloads",
    "trainer_ends",
]
ENGINE_STATES: frozenset[State] = frozenset({"absent", "awake", "asleep", "loading"})
TRAINER_STATES: frozenset[State] = frozenset({"absent", "loaded", "training", "sending", "streaming", "offloaded"})

EVENTS: Mapping[Event, tuple[frozenset[State], State]] = {
    "engine_starts": (frozenset({"absent"}), "awake"),
    "engine_sleeps": (frozenset({"awake", "loading"}), "asleep"),
    "engine_wakes_weights": (frozenset({"asleep"}), "loading"),
    "engine_wakes_kv": (frozenset({"loading"}), "awake"),
    "engine_ends": (ENGINE_STATES, "absent"),
    "trainer_starts": (frozenset({"absent"}), "loaded"),
    "trainer_loads": (frozenset({"offloaded", "sending", "streaming", "training"}), "loaded"),
    "trainer_trains": (frozenset({"loaded"}), "training"),
    "trainer_sends": (frozenset({"offloaded", "loaded", "training", "streaming"}), "sending"),
    "trainer_streams": (frozenset({"offloaded", "loaded", "sending"}), "streaming"),
    "trainer_offloads": (frozenset({"loaded", "training", "sending", "streaming"}), "offloaded"),
    "trainer_ends": (TRAINER_STATES, "absent"),
}
"""The states that each event may follow, and the state that it leads to."""

ROUNDING = 1e-9
"""Share of the capacity by which sums of floats may be wrong."""


class OutOfMemory(ValueError):
    """An event that would take more memory than its device has."""

    def __init__(self, device: str, holder: str, event: str, needed_bytes: float, free_bytes: float) -> None:
        super().__init__(
            f"{device}: {event.replace('_', ' ')} would take {needed_bytes / 1e9:.4g} GB more for {holder}, and "
            f"{free_bytes / 1e9:.4g} GB are free"
        )


class WrongTransition(ValueError):
    """An event that may not follow the holder's state."""


class DeviceTransition(NamedTuple):
    """One event of one holder."""

    event: Event
    holder: str


class TransitionBytes(NamedTuple):
    """Bytes that a transition moves on each device of its holder.

    Attributes:
        mapped_bytes: by how much the holder's bytes on the device change, up or down.
        link_bytes: bytes that cross the device's host link, in either direction.
    """

    transition: DeviceTransition
    mapped_bytes: float
    link_bytes: float


class Device(NamedTuple):
    """An accelerator.

    Attributes:
        name: in error messages.
        capacity_bytes: of its memory.
        holders: all engines and trainers that may ever be on it.
        always: bytes that are held in every state, by what holds them: contexts, communicators, captured graphs.
        room_bytes: an engine and a trainer that together never hold more stay on it side by side; 0: they always take
            turns.
    """

    name: str
    capacity_bytes: float
    holders: Sequence[Holder]
    always: Parts = MappingProxyType({})
    room_bytes: float = 0.0

    def fits(self, held_bytes: float) -> bool:
        """Whether so many bytes fit, up to rounding."""
        return held_bytes <= self.capacity_bytes * (1 + ROUNDING)

    def in_turns(self, one: Holder, other: Holder) -> bool:
        """Whether two of its holders take turns. An engine and a trainer do not if there is room for the most that each
        of them ever holds, beside what other trainers keep here while engines decode."""
        if not self.room_bytes or one.kind == other.kind:
            return True
        others = [each for each in self.holders if each.kind == "trainer" and each.name not in (one.name, other.name)]
        kept = sum(self.always.values()) + sum(each.device_bytes("offloaded") for each in others)
        return kept + one.most_bytes + other.most_bytes > self.room_bytes * (1 + ROUNDING)


class DeviceLedger:
    """The ledger of some devices.

    Args:
        devices: with the engines and trainers on each.
        states: of engines and trainers; those that are not named are absent at first.
        places: names of the devices of each holder, in the order of its ranks; None: in the order of `devices`.
        shared: whether other jobs use the same devices between this job's phases (a co-execution group).

    Attributes:
        where: the devices of each engine and trainer.
        beside: for each engine and trainer, those with which it takes turns on a device.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        states: Mapping[str, State] | None = None,
        places: Mapping[str, Sequence[str]] | None = None,
        shared: bool = False,
    ) -> None:
        self.devices, self.shared = {device.name: device for device in devices}, shared
        self.holders: dict[str, Holder] = {}
        self.where: dict[str, list[Device]] = {}
        beside: dict[str, set[str]] = {}
        for device in self.devices.values():
            for holder in device.holders:
                self.holders[holder.name] = holder
                self.where.setdefault(holder.name, []).append(device)
                others = (other for other in device.holders if other.name != holder.name)
                neighbours = beside.setdefault(holder.name, set())
                neighbours.update(other.name for other in others if device.in_turns(holder, other))
        self.beside = {name: frozenset(others) for name, others in beside.items()}
        self.places = places or {name: [device.name for device in on] for name, on in self.where.items()}
        self.states: dict[str, State] = {name: (states or {}).get(name, "absent") for name in self.holders}
        for device in self.devices.values():
            if not device.fits(held := self.held_bytes(device.name)):
                raise ValueError(
                    f"{device.name}: {held:.6g} bytes are held of {device.capacity_bytes:.6g} from the start"
                )

    def held_bytes(self, device: str) -> float:
        """Bytes that are held on a device now."""
        on = self.devices[device]
        return sum(on.always.values()) + sum(
            self.holders[each.name].device_bytes(self.states[each.name]) for each in on.holders
        )

    def parts(self, device: str) -> dict[str, float]:
        """Bytes that are held on a device now, by part; parts of the same name are summed."""
        found: dict[str, float] = {}
        on = self.devices[device]
        for parts in (*(each.on_device.get(self.states[each.name], {}) for each in on.holders), on.always):
            for part, size in parts.items():
                found[part] = found.get(part, 0.0) + size
        return found

    def take(self, transition: DeviceTransition) -> TransitionBytes:
        """Make a transition on all devices of its holder; returns the bytes that it moves on each.

        Raises OutOfMemory or WrongTransition if it is not possible now, and then changes nothing.
        """
        holder, now = self.holders[transition.holder], self.states[transition.holder]
        before, after = EVENTS[transition.event]
        more = holder.device_bytes(after) - holder.device_bytes(now)
        for device in self.where[transition.holder]:
            if now not in before or transition.event.partition("_")[0] != holder.kind:
                raise WrongTransition(
                    f"{device.name}: {transition.event.replace('_', ' ')} cannot be, {holder.name} is {now}"
                )
            # What frees memory is never refused, whatever the capacity.
            if more > 0 and not device.fits((held := self.held_bytes(device.name)) + more):
                raise OutOfMemory(device.name, holder.name, transition.event, more, device.capacity_bytes - held)
        self.states[transition.holder] = after
        # A holder that starts or ends makes or drops its states; they do not cross the host link.
        link = 0.0 if "absent" in (now, after) else abs(holder.host_bytes(after) - holder.host_bytes(now))
        return TransitionBytes(transition, abs(more), link)

    def could(self, *transitions: DeviceTransition) -> bool:
        """Whether the transitions are possible one after another from the present states. Changes nothing."""
        return self.refusal(transitions) is None

    def refusal(self, transitions: Iterable[DeviceTransition]) -> OutOfMemory | WrongTransition | None:
        """Why the transitions are not possible one after another from the present states; None if they are. The
        iterable may read the states between them. Changes nothing."""
        before = dict(self.states)
        try:
            for transition in transitions:
                self.take(transition)
        except (OutOfMemory, WrongTransition) as refused:
            return refused
        finally:
            self.states.update(before)
        return None

    def bounded(self, engine: str) -> bool:
        """Whether an engine holds memory of a device."""
        return self.holders[engine].device_bytes("awake") > 0

    def contended(self, engine: str) -> bool:
        """Whether an engine holds memory of a device that others use too."""
        return self.bounded(engine) and (self.shared or bool(self.beside[engine]))

    def grows(self, transition: DeviceTransition) -> bool:
        """Whether a holder needs more of a device after a transition than before."""
        holder = self.holders[transition.holder]
        return holder.device_bytes(EVENTS[transition.event][1]) > holder.device_bytes(self.states[transition.holder])

    def check_invariants(self) -> None:
        """Assert the invariants of the module."""
        for name, device in self.devices.items():
            assert device.fits(self.held_bytes(name)), f"{name} holds more than it has"
        for name, state in self.states.items():
            allowed = ENGINE_STATES if self.holders[name].kind == "engine" else TRAINER_STATES
            assert state in allowed, f"{name} is {state}"
