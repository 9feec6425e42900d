"""The ledger of the accelerators that engines and trainers share: who holds how many bytes, and who may come next.

Engines and trainers of a job take turns on the same devices. Each holder is in one state, on all of its devices, which
says what it holds on each and what it keeps in host memory meanwhile:

    engine    absent -> awake -> asleep -> loading -> awake ...     loading: weights, no KV cache
    trainer   absent -> loaded -> training -> sending -> offloaded -> loaded ...     sending: parameters, no moments
              offloaded -> streaming -> loaded ...     streaming: parameters and gradients, while engines decode

The planner states what is held by its estimates and the executor by what it starts, through the same functions:

- an engine that sleeps has dropped its weights and its KV cache (vLLM's sleep level 2) and keeps no copy of either in
  host memory: new weights come with the next weight sync;
- a trainer that is offloaded leaves on the device what `staying` says. The rest of its parameters and moments is in
  host memory, and comes back for the next update; gradients are dropped after each update;
- while weights arrive a trainer has its parameters on the device, and of its moments what stays there anyway;
- while it trains beside engines that decode (it streams), it has parameters and gradients there, which are in float32
  both, and what it gathers of other ranks. On a device whose engine sleeps there is room for activations besides.

The ledger reads no clock and moves no byte. The executor asks it before memory is taken and tells it after memory was
freed (executor/memory/device_turns.py); the planner prices the order of a step with it (planner/costs/colocation.py)
and reads its memory table off it (planner/costs/memory_table.py). So both have the same order and the same bytes.

Invariants (`check_invariants`):
- what is held on a device never exceeds its capacity: an event that would exceed it is refused;
- a refused event changes nothing, on no device;
- an event is only taken from a state that it can follow: an engine gets its KV cache after its weights, a trainer
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


def staying(states: Parts, room_bytes: float) -> Parts:
    """Of a trainer's states on a device those that stay there while engines decode: parameters and moments if both fit
    into `room_bytes`, else the parameters if they do, else nothing."""
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
) -> Holder:
    """A trainer's rank by what it holds on its device, and in host memory for it.

    Args:
        parameters, moments: bytes of its float32 parameters, and of the optimizer's moments of them.
        room_bytes: that these have on the device while engines decode (`staying`).
        offload: whether the moments are in host memory throughout, updates included.
        training: all that it holds while it trains; None: parameters and moments.
        sending: what it holds beside parameters while weights travel.
    """
    states = {PARAMETERS: parameters, MOMENTS: 0.0 if offload else moments}
    stays, always = staying(states, room_bytes), {MOMENTS: moments} if offload else {}
    away = {part: size for part, size in states.items() if part == MOMENTS and part not in stays and size}
    gone = {part: size for part, size in states.items() if part == PARAMETERS and part not in stays}
    sent = {PARAMETERS: parameters, **(sending or {}), **stays}
    return Holder(
        name,
        "trainer",
        on_device={
            "loaded": states,
            "training": training or states,
            "sending": sent,
            "streaming": {**sent, "trainer_gradients": parameters},
            "offloaded": stays,
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
"""Share of the capacity by which sums of floats may be off."""


class OutOfMemory(ValueError):
    """An event that would take more memory than its device has."""

    def __init__(self, device: str, holder: str, event: str, needed_bytes: float, free_bytes: float) -> None:
        super().__init__(
            f"{device}: {event.replace('_', ' ')} would take {needed_bytes / 1e9:.4g} GB more for {holder}, and "
            f"{free_bytes / 1e9:.4g} GB are free"
        )


class WrongTurn(ValueError):
    """An event that cannot follow the holder's state."""


class DeviceTurn(NamedTuple):
    """One event of one holder."""

    event: Event
    holder: str


class DeviceMove(NamedTuple):
    """What a turn does on each device of its holder.

    Attributes:
        mapped_bytes: by how much the holder's bytes on the device change, up or down.
        link_bytes: bytes that cross the device's host link, in either direction.
    """

    turn: DeviceTurn
    mapped_bytes: float
    link_bytes: float


class Device(NamedTuple):
    """An accelerator.

    Attributes:
        name: what refusals call it.
        capacity_bytes: of its memory.
        holders: all that may ever be on it.
        always: bytes by what holds them whatever the states are: contexts, communicators and captured graphs of whoever
            sleeps.
        room_bytes: of its memory that an engine and a trainer may hold side by side, so that neither makes room for the
            other; 0: they take turns, whatever they hold.
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
        """Whether two of its holders take turns: unless they are an engine and a trainer with room for all that either
        ever holds, beside what other trainers keep here while engines decode."""
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
        shared: whether other jobs have the same devices in turns of their own (a co-execution group).

    Attributes:
        where: the devices of each engine and trainer.
        beside: for each engine and trainer those that it shares a device with in turns.
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
                turns = beside.setdefault(holder.name, set())
                turns.update(other.name for other in others if device.in_turns(holder, other))
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
        """Bytes that are held on a device now, by what holds them; parts of the same name are summed."""
        found: dict[str, float] = {}
        on = self.devices[device]
        for parts in (*(each.on_device.get(self.states[each.name], {}) for each in on.holders), on.always):
            for part, size in parts.items():
                found[part] = found.get(part, 0.0) + size
        return found

    def take(self, turn: DeviceTurn) -> DeviceMove:
        """Take a turn on all devices of its holder; returns what it does on each.

        Raises OutOfMemory or WrongTurn if it cannot be taken now, and changes nothing then.
        """
        holder, now = self.holders[turn.holder], self.states[turn.holder]
        before, after = EVENTS[turn.event]
        more = holder.device_bytes(after) - holder.device_bytes(now)
        for device in self.where[turn.holder]:
            if now not in before or turn.event.partition("_")[0] != holder.kind:
                raise WrongTurn(f"{device.name}: {turn.event.replace('_', ' ')} cannot be, {holder.name} is {now}")
            # What frees memory is never refused, be the capacity what it may.
            if more > 0 and not device.fits((held := self.held_bytes(device.name)) + more):
                raise OutOfMemory(device.name, holder.name, turn.event, more, device.capacity_bytes - held)
        self.states[turn.holder] = after
        # Who starts or ends brings or loses its states; they do not come from host memory.
        link = 0.0 if "absent" in (now, after) else abs(holder.host_bytes(after) - holder.host_bytes(now))
        return DeviceMove(turn, abs(more), link)

    def could(self, *turns: DeviceTurn) -> bool:
        """Whether the turns could be taken one after another, from the states that are. Changes nothing."""
        return self.refusal(turns) is None

    def refusal(self, turns: Iterable[DeviceTurn]) -> OutOfMemory | WrongTurn | None:
        """Why the turns could not be taken one after another, from the states that are; None if they could. `turns` may
        look at the states as they go. Changes nothing."""
        before = dict(self.states)
        try:
            for turn in turns:
                self.take(turn)
        except (OutOfMemory, WrongTurn) as refused:
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

    def grows(self, turn: DeviceTurn) -> bool:
        """Whether a turn takes more of a device than its holder has there now."""
        holder = self.holders[turn.holder]
        return holder.device_bytes(EVENTS[turn.event][1]) > holder.device_bytes(self.states[turn.holder])

    def check_invariants(self) -> None:
        """Assert the invariants of the module."""
        for name, device in self.devices.items():
            assert device.fits(self.held_bytes(name)), f"{name} holds more than it has"
        for name, state in self.states.items():
            allowed = ENGINE_STATES if self.holders[name].kind == "engine" else TRAINER_STATES
            assert state in allowed, f"{name} is {state}"
