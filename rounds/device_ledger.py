"""The ledger of an accelerator that engines and trainers share: who holds how many bytes, and who may come next.

Engines and trainers of a job take turns on the same devices. Each holder is in one state, which says what it holds on a
device and what it keeps in host memory meanwhile:

    engine    absent -> awake -> asleep -> loading -> awake ...     loading: weights, no KV cache
    trainer   absent -> loaded -> training -> sending -> offloaded -> loaded ...     sending: parameters, no moments
              offloaded -> streaming -> loaded ...     streaming: parameters and gradients, while engines decode

The ledger reads no clock and moves no byte. The executor asks it before memory is taken and tells it after memory was
freed (executor/memory/device_turns.py); the planner prices the order of a step with it
(planner/costs/colocation.py). So both have the same order and the same bytes.

Invariants (`check_invariants`):
- what is held on a device never exceeds its capacity: an event that would exceed it is refused;
- a refused event changes nothing, on no device;
- an event is only taken from a state that it can follow: an engine gets its KV cache after its weights, a trainer
  trains after its states came to the device;
- `peak_bytes` is the most that was ever held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from .device_holders import Holder, Parts, State

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
        self.device, self.holder, self.event = device, holder, event
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class WrongTurn(ValueError):
    """An event that cannot follow the holder's state."""


class Turn(NamedTuple):
    """One event of one holder."""

    event: Event
    holder: str


class Move(NamedTuple):
    """What a turn does on one device.

    Attributes:
        mapped_bytes: by how much the holder's bytes on the device change, up or down.
        link_bytes: bytes that cross the device's host link, in either direction.
    """

    turn: Turn
    mapped_bytes: float
    link_bytes: float


class DeviceLedger:
    """The ledger of one device.

    Args:
        name: what refusals call the device.
        capacity_bytes: of its memory.
        holders: all that may ever be on it; they are absent at first, unless `states` has them.
        always: bytes by what holds them whatever the states are: contexts, communicators and captured graphs of whoever
            sleeps.
        room_bytes: of its memory that an engine and a trainer may hold side by side, so that neither makes room for the
            other; 0: they take turns, whatever they hold.
    """

    def __init__(
        self,
        name: str,
        capacity_bytes: float,
        holders: Iterable[Holder],
        always: Parts | None = None,
        states: Mapping[str, State] | None = None,
        room_bytes: float = 0.0,
    ) -> None:
        self.name, self.capacity_bytes, self.always = name, capacity_bytes, dict(always or {})
        self.holders = {holder.name: holder for holder in holders}
        self.beside = {
            name: frozenset(
                other for other in self.holders if other != name and not self._fit_together(name, other, room_bytes)
            )
            for name in self.holders
        }
        """For each engine and trainer those that share this device with it in turns."""
        self.states: dict[str, State] = {name: (states or {}).get(name, "absent") for name in self.holders}
        self.peak_bytes = self.held_bytes
        if not self._fits(self.held_bytes):
            raise ValueError(f"{name}: {self.held_bytes:.6g} bytes are held of {capacity_bytes:.6g} from the start")

    def _fit_together(self, name: str, other: str, room_bytes: float) -> bool:
        """Whether an engine and a trainer have room for all that either ever holds, beside what other trainers keep
        here while engines decode. Engines take turns with each other, and trainers do."""
        pair = [self.holders[name], self.holders[other]]
        if not room_bytes or pair[0].kind == pair[1].kind:
            return False
        others = [each for each in self.holders.values() if each.kind == "trainer" and each not in pair]
        kept = sum(self.always.values()) + sum(each.device_bytes("offloaded") for each in others)
        return kept + sum(each.most_bytes for each in pair) <= room_bytes * (1 + ROUNDING)

    @property
    def held_bytes(self) -> float:
        """Bytes that are held now."""
        return sum(self.always.values()) + sum(self.holders[name].device_bytes(at) for name, at in self.states.items())

    @property
    def parts(self) -> dict[str, float]:
        """Bytes that are held now, by what holds them; parts of the same name are summed."""
        found: dict[str, float] = {}
        held = [self.holders[name].on_device.get(at, {}) for name, at in self.states.items()]
        for parts in (*held, self.always):
            for part, size in parts.items():
                found[part] = found.get(part, 0.0) + size
        return found

    def check(self, turn: Turn) -> None:
        """Raises OutOfMemory or WrongTurn if the turn cannot be taken now. Changes nothing."""
        holder, now = self.holders[turn.holder], self.states[turn.holder]
        before, after = EVENTS[turn.event]
        if now not in before or turn.event.partition("_")[0] != holder.kind:
            raise WrongTurn(f"{self.name}: {turn.event.replace('_', ' ')} cannot be, {holder.name} is {now}")
        more = holder.device_bytes(after) - holder.device_bytes(now)
        # What frees memory is never refused, be the capacity what it may.
        if more > 0 and not self._fits(self.held_bytes + more):
            free = self.capacity_bytes - self.held_bytes
            raise OutOfMemory(self.name, holder.name, turn.event, more, free)

    def take(self, turn: Turn) -> Move:
        """Take a turn. Raises as `check` does, and changes nothing then."""
        self.check(turn)
        holder, before = self.holders[turn.holder], self.states[turn.holder]
        after = EVENTS[turn.event][1]
        self.states[turn.holder] = after
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        mapped = abs(holder.device_bytes(after) - holder.device_bytes(before))
        # Who starts or ends brings or loses its states; they do not come from host memory.
        link = 0.0 if "absent" in (before, after) else abs(holder.host_bytes(after) - holder.host_bytes(before))
        return Move(turn, mapped, link)

    def _fits(self, held_bytes: float) -> bool:
        return held_bytes <= self.capacity_bytes * (1 + ROUNDING)

    def check_invariants(self) -> None:
        """Assert the invariants of the module."""
        assert self._fits(self.held_bytes), f"{self.name} holds more than it has"
        assert self.held_bytes <= self.peak_bytes * (1 + ROUNDING), f"{self.name}: the peak was missed"
        for name, state in self.states.items():
            allowed = ENGINE_STATES if self.holders[name].kind == "engine" else TRAINER_STATES
            assert state in allowed, f"{name} is {state}"


class DeviceLedgers:
    """The ledgers of several devices; an engine or trainer is on some of them, in the same state on all of these.

    Args:
        ledgers: one of each device.
        places: names of the devices of each holder, in the order of its ranks; None: in the order of `ledgers`.
        shared: whether other jobs have the same devices in turns of their own (a co-execution group).
    """

    def __init__(
        self,
        ledgers: Sequence[DeviceLedger],
        places: Mapping[str, Sequence[str]] | None = None,
        shared: bool = False,
    ) -> None:
        self.ledgers, self.shared = tuple(ledgers), shared
        self.where: dict[str, tuple[DeviceLedger, ...]] = {}
        for ledger in self.ledgers:
            for name in ledger.holders:
                self.where[name] = (*self.where.get(name, ()), ledger)
        self.beside: dict[str, frozenset[str]] = {
            name: frozenset().union(*(ledger.beside[name] for ledger in ledgers))
            for name, ledgers in self.where.items()
        }
        """For each engine and trainer those that it shares a device with in turns."""
        self.places = places or {name: [ledger.name for ledger in ledgers] for name, ledgers in self.where.items()}

    def state(self, holder: str) -> State:
        """The state of an engine or trainer."""
        return self.where[holder][0].states[holder]

    @property
    def holders(self) -> dict[str, Holder]:
        """All engines and trainers, by name."""
        return {name: ledgers[0].holders[name] for name, ledgers in self.where.items()}

    @property
    def states(self) -> dict[str, State]:
        """The state of each engine and trainer."""
        return {name: self.state(name) for name in self.where}

    def check(self, turn: Turn) -> None:
        """Raises OutOfMemory or WrongTurn if the turn cannot be taken on one of its devices. Changes nothing."""
        for ledger in self.where[turn.holder]:
            ledger.check(turn)

    def fits(self, turn: Turn) -> bool:
        """Whether the turn could be taken now."""
        return self.could([turn])

    def could(self, turns: Iterable[Turn]) -> bool:
        """Whether the turns could be taken one after another, from the states that are. Changes nothing."""
        return self.refusal(turns) is None

    def refusal(self, turns: Iterable[Turn]) -> OutOfMemory | WrongTurn | None:
        """Why the turns could not be taken one after another, from the states that are; None if they could. `turns` may
        look at the states as they go. Changes nothing."""
        before = [(ledger, dict(ledger.states), ledger.peak_bytes) for ledger in self.ledgers]
        try:
            for turn in turns:
                self.take(turn)
        except (OutOfMemory, WrongTurn) as refused:
            return refused
        finally:
            for ledger, states, peak_bytes in before:
                ledger.states, ledger.peak_bytes = states, peak_bytes
        return None

    def bounded(self, engine: str) -> bool:
        """Whether an engine holds memory of a device."""
        return self.holders[engine].device_bytes("awake") > 0

    def contended(self, engine: str) -> bool:
        """Whether an engine holds memory of a device that others use too."""
        return self.bounded(engine) and (self.shared or bool(self.beside[engine]))

    def grows(self, turn: Turn) -> bool:
        """Whether a turn takes more of a device than its holder has there now."""
        holder = self.holders[turn.holder]
        return holder.device_bytes(EVENTS[turn.event][1]) > holder.device_bytes(self.state(turn.holder))

    def take(self, turn: Turn) -> Move:
        """Take a turn on all devices of its holder; returns what it does on each. Raises as `check`, without change."""
        self.check(turn)
        moves = [ledger.take(turn) for ledger in self.where[turn.holder]]
        return moves[0]

    def check_invariants(self) -> None:
        """Assert the invariants of the module."""
        for ledger in self.ledgers:
            ledger.check_invariants()
        for name, ledgers in self.where.items():
            assert len({ledger.states[name] for ledger in ledgers}) == 1, f"{name} is in two states at once"
