"""The memory table: the bytes that engines and trainers hold on devices and hosts, in each phase of a round.

`JobMemory` is asked by solve (what does not fit is no candidate; a plan's predicted memory), check, simulate, show and
execute. It is a pure function of the profile, the pools, and the engines and trainers of each kind of round. A use of
memory is what one place holds in one phase: what is there all the time, and the largest of a few moments. Uses are
never summed.

What is assumed:
- Engines and trainers of a job take turns on the same accelerators, and are spread evenly over the nodes of the plan;
  or each has a pool of its own, and then a device and a host hold the one or the other, and nothing leaves a device.
- Awake, an engine takes its share of a device (vLLM's gpu_memory_utilization): its weights, its KV cache, and what is
  left of the share for captured graphs and activations.
- Who is on a device in which phase follows from the order of turns that the executor keeps (rounds/step_order.py),
  and what each holds in each state from rounds/device_ledger.py.
- While trainers train, engines sleep at level 2: weights and KV cache are dropped, and no copy of them stays in host
  memory. Contexts, communicators and captured graphs of whoever sleeps stay on the device (`reserve`), and 3 % of
  it is planned for nobody (`slack`; plans/facts/device_shares.py). What torch's allocator has beside what a trainer
  asks of it is a row of its own: public runs tell what was reserved, 7 % more than modules hold (rank_memory.py).
- While engines decode, a trainer's parameters and optimizer stay on the device if they fit beside any of the profile's
  engines, or its parameters alone; what does not fit goes to host memory (verl's param_offload and optimizer_offload),
  where it has page-locked memory in all phases. Gradients go after an update.
- A reference is always on the trainers' devices, or in host memory and comes for a forward pass, beside gradients.
- Offloaded, AdamW's moments are in host memory in every phase; while the optimizer steps, those of a few parameters
  at a time are on the device. Parameters and gradients are not offloaded.
- A host holds the copy of parameters and moments that a checkpoint is written from while training goes on.
- While weights travel, engines hold weights and no KV cache, and the trainer has its parameters on the device. They
  travel in pieces, of which a node holds a few buckets in host memory (`weights_under_way`). Where they cannot, they
  go by a file, for which the node of the trainer's first rank needs a whole copy: that is not counted.
- On CPUs the memory of devices is the KV space that an engine may take per core, and each of its ranks is given that of
  all its cores (executor/engines/fleet.py). All of it is held in host memory: engines of all layouts stay awake, and a
  trainer keeps parameters, gradients and optimizer in float32.

Left out, since nothing is known of them: processes of reward workers (reward.memory_bytes limits an address space) and
of trainers on CPUs, activations where no peak was measured, and what drafts come from (responses on the driver's host,
512 MiB at most, executor/drafts/history_store.py, and the engines' indexes of them).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ...plans.facts.device_shares import ASLEEP_SHARE, PLANNED_SHARE, SLACK_SHARE
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.cluster import Pool
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...profiles.laws.hardware_peaks import dtype_of
from ...profiles.laws.rank_memory import (
    CHECKPOINT_BYTES,
    GRADIENT_BYTES,
    MOMENT_BYTES,
    UTILISATION,
)
from ...profiles.laws.suspicions import measured_update
from ...profiles.laws.train_layouts import fitted_memory, kept_bytes, rank_share, train_physics
from ...profiles.phase_schema import Rollout
from ...profiles.profile_schema import Profile
from ...rounds.device_ledger import (
    KV_CACHE,
    MOMENTS,
    PARAMETERS,
    Device,
    DeviceLedger,
    Holder,
    Parts,
    TransitionBytes,
    engine_holder,
    trainer_holder,
)
from ...rounds.step_order import step_moves
from .job_pools import HostShare, JobPools, NodesTaken

Place = Literal["device", "host"]
Phase = Literal["rollout", "train", "sync"]
PHASES: tuple[Phase, ...] = ("rollout", "train", "sync")
Side = Literal["both", "engines", "trainers"]
"""Who is on a place: both take turns on it, or it is of a pool that one of them has to itself."""

Moments = dict[str, dict[str, float]]
"""Bytes more at one moment each, by the moment's name and by what holds them."""

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of an engine's parameter, by the job's dtype."""

# A process on a host (interpreter, torch, kernels) beside weights and KV. An engine has one per rank, one for its core
# and one for the actor around it; a trainer on GPUs has one per rank.
HOST_PROCESS_BYTES = 1_000_000_000
# How weights travel in pieces (executor/weights): buckets of whole tensors of at most so many bytes, or of one tensor.
# A node with engines has two of them, and a third is counted as a reserve; a node of trainers one that it sends.
BUCKET_BYTES, ARRIVING, LEAVING = 128_000_000, 3, 1

NO_ENGINE, NO_TRAINER = Holder("engine", "engine"), Holder("trainer", "trainer")
"""Holders of nothing."""


@dataclass(frozen=True)
class Engines:
    """The engines of a layout, priced by `entry` of the profile; `kv_tokens`: that each has room for, where a plan says
    it (None: all that the entry's has)."""

    entry: Rollout
    layout: EngineLayout
    kv_tokens: int | None = None

    @property
    def kv_bytes(self) -> float:
        """Bytes of an engine's KV cache, of all its ranks together."""
        most = self.entry.kv_capacity_tokens
        return min(most, most if self.kv_tokens is None else self.kv_tokens) * self.entry.kv_bytes_per_token


@dataclass(frozen=True)
class MemoryUse:
    """The bytes that a device, or the host of a node, holds in one phase of a kind of round; of all places the fullest.

    Attributes:
        kind: which of the table's kinds of round: 0 short, 1 long, 2 the tail of long rounds on engines of its own.
        kept: bytes throughout the phase, by what holds them.
        moments: bytes on top of it at one moment each, by the moment's name and by what holds them.
        capacity_bytes: that there are.
        complete: whether `kept` and `moments` hold all bytes; if not, they are a lower bound.
        side: who is on the place.
    """

    place: Place
    phase: Phase
    kind: int
    kept: Parts
    moments: Mapping[str, Parts]
    capacity_bytes: float
    complete: bool = True
    side: Side = "both"

    @property
    def holds_bytes(self) -> dict[str, float]:
        """Bytes by holder at the moment at which most memory is held; holders of nothing are left out."""
        worst = max(self.moments.values(), key=lambda held: sum(held.values()), default={})
        names = {**self.kept, **worst}
        return {n: size for n in names if (size := self.kept.get(n, 0.0) + worst.get(n, 0.0)) > 0}

    @property
    def needed_bytes(self) -> float:
        """Total bytes at the moment at which most memory is held."""
        return sum(self.holds_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether the capacity suffices, up to rounding of sums of floats."""
        return self.needed_bytes <= self.capacity_bytes * (1 + 1e-9)

    @property
    def fullness(self) -> float:
        """What is needed as a share of what there is."""
        return self.needed_bytes / self.capacity_bytes

    @property
    def held_text(self) -> str:
        """What is held, and by whom: `413 GB (optimizer 262 GB, parameters 131 GB, kv cache 20 GB)`."""
        return f"{bytes_text(self.needed_bytes)} ({largest(self.holds_bytes)})"


def largest(holds_bytes: Parts) -> str:
    """The three largest holders of memory as text: `optimizer 262 GB, parameters 131 GB`."""
    names = sorted(holds_bytes, key=lambda name: -holds_bytes[name])[:3]
    return ", ".join(f"{name.replace('_', ' ')} {bytes_text(holds_bytes[name])}" for name in names)


def fullest_host(uses: Iterable[MemoryUse]) -> MemoryUse:
    """Of the uses of nodes' hosts that which is fullest, as a share of what there is."""
    return max((use for use in uses if use.place == "host"), key=lambda use: use.fullness)


def trained_parameters(profile: Profile, layout: UpdateLayout) -> float:
    """Parameters that a trainer rank trains: its share of the model's, or all adapters."""
    return rank_share(profile, layout) if profile.adapters is None else float(profile.adapters.parameters)


def reference_bytes(profile: Profile, layout: UpdateLayout) -> float:
    """Bytes of a trainer rank's part of a reference, in the type that is computed in; 0 of a layout without one, and
    under adapters, which are turned off for it."""
    each = 2 if dtype_of(profile) == "bfloat16" else 4
    return 0.0 if layout.reference == "none" or profile.adapters else rank_share(profile, layout) * each


def training_bytes(profile: Profile, layout: UpdateLayout) -> tuple[dict[str, float], Moments, bool]:
    """(bytes that a trainer's GPU holds while it trains, bytes more at one moment each, whether that is all of it).

    A measured update says its peak, or nothing; else the law tells, with its fitted factors.
    """
    entry = measured_update(profile.train, layout)
    if entry is None and profile.train_law is not None:
        memory = fitted_memory(profile.train_law, layout)
        return memory.kept, memory.moments, True
    share = trained_parameters(profile, layout)
    kept = {
        PARAMETERS: kept_bytes(profile, layout),
        MOMENTS: 0.0 if layout.offload else share * MOMENT_BYTES,
        "trainer_gradients": GRADIENT_BYTES * share,
    }
    moments: Moments = {}
    measured, held = 0 if entry is None else entry.peak_bytes, sum(kept.values())
    if held > measured > 0:  # it keeps less than float32 masters; of what was measured the shares are guessed
        kept = {name: size * measured / held for name, size in kept.items()}
    elif measured:
        moments["backward"] = {"trainer_activations": measured - held}
    reference = {"trainer_reference": reference_bytes(profile, layout)}
    moments |= {"reference": reference} if layout.reference == "host" else {}
    return kept | (reference if layout.reference == "device" else {}), moments, measured > 0


@dataclass(frozen=True)
class DeviceMemory:
    """What engines and trainers of a profile hold on an accelerator of `capacity_bytes`; `weight_bytes`: of an engine's
    parameter."""

    profile: Profile
    capacity_bytes: float
    weight_bytes: float = WEIGHT_BYTES["bfloat16"]

    def engine(self, engines: Engines) -> Holder:
        """An engine, with a KV cache as `engines` has it."""
        tp = engines.layout.tp
        physics = train_physics(self.profile.train_law)
        shape = None if physics is None else physics.architecture
        # Ranks beyond the KV heads hold copies of them.
        ranks = tp if shape is None else min(tp, 1 if shape.latent_kv else shape.kv_heads)
        weights = self.weight_bytes * self.profile.model_parameters / tp
        # What vLLM leaves of its share when it takes all the KV cache that there is room for, which the profile has.
        left = UTILISATION * self.capacity_bytes - weights - replace(engines, kv_tokens=None).kv_bytes / ranks
        awake = {
            "engine_weights": weights,
            KV_CACHE: engines.kv_bytes / ranks,
            "engine_activations_and_graphs": max(0.0, left),
        }
        return engine_holder(NO_ENGINE.name, awake)

    def room_beside(self, engines: Sequence[Engines]) -> float:
        """Bytes that may be planned beside whichever of `engines` holds most."""
        held = max(self.engine(each).device_bytes("awake") for each in engines)
        return PLANNED_SHARE * self.capacity_bytes - held

    @cached_property
    def least_room(self) -> float:
        """Bytes that may be planned beside any of the profile's engines."""
        return self.room_beside([Engines(entry, entry.layout) for entry in self.profile.rollout])

    def trainer(
        self,
        layout: UpdateLayout,
        beside: Sequence[Engines] = (),
        alone: bool = False,
        training: Parts | None = None,
        sending: Parts | None = None,
    ) -> Holder:
        """A trainer's rank by what it holds on its GPU and in host memory in each state.

        `beside`: engines that it takes turns with, none: any of the profile's; `alone`: no engine is ever on its GPU,
        so that nothing leaves it; `training`: all that it holds while it trains; `sending`: beside its parameters while
        weights travel.
        """
        share = trained_parameters(self.profile, layout)
        kept = {"trainer_reference": reference_bytes(self.profile, layout)} if layout.reference == "device" else {}
        return trainer_holder(
            NO_TRAINER.name,
            kept_bytes(self.profile, layout),
            share * MOMENT_BYTES,
            math.inf if alone else self.room_beside(beside) if beside else self.least_room,
            offload=layout.offload,
            training=training,
            sending=sending,
            kept=kept,
            gradients=share * GRADIENT_BYTES,
        )

    def could_stream(self, layout: UpdateLayout, engines: Engines) -> bool:
        """Whether a trainer's rank could hold parameters and gradients on a GPU on which an engine decodes: so a
        replica on other GPUs trains early (rounds/group_queue.py), as ranks of all replicas hold shards of the
        parameters."""
        held = self.engine(engines).device_bytes("awake") + self.trainer(layout).device_bytes("streaming")
        return held <= PLANNED_SHARE * self.capacity_bytes

    def ledger(self, engine: Holder, trainer: Holder, room_bytes: float = 0.0) -> DeviceLedger:
        """The ledger of a GPU on which an engine decodes while the trainer is offloaded, or stays loaded where
        `room_bytes` suffice for both. It refuses nothing: what does not fit is told by the memory table.

        Planned for nobody: contexts, communicators and captured graphs of whoever is there, and slack.
        """
        always = {"reserve": ASLEEP_SHARE * self.capacity_bytes, "slack": SLACK_SHARE * self.capacity_bytes}
        ledger = DeviceLedger(
            [Device("GPU", math.inf, [trainer, engine], always, room_bytes)],
            {engine.name: "awake", trainer.name: "offloaded"},
        )
        if room_bytes and not ledger.beside[trainer.name]:
            ledger.states[trainer.name] = "loaded"
        return ledger

    def step(
        self, engine: Holder = NO_ENGINE, trainer: Holder = NO_TRAINER
    ) -> tuple[list[TransitionBytes], dict[str, dict[str, float]]]:
        """One step on the GPU, as `step_moves` has it, of those that take turns there."""
        return step_moves(self.ledger(engine, trainer), trainer.name, [engine.name])

    def rank(
        self, layout: UpdateLayout, beside: Sequence[Engines] = (), alone: bool = False
    ) -> tuple[Holder, Moments, bool]:
        """A trainer's rank as of `trainer`, with the moments as of `training_bytes`."""
        kept, moments, complete = training_bytes(self.profile, layout)
        gathered = moments.get("loss", {}).get("trainer_gathered_weights", 0.0)
        sending = {"trainer_gathered_weights": gathered}
        return self.trainer(layout, beside, alone, kept, sending), moments, complete

    def shared(
        self, engines: Engines, layout: UpdateLayout, beside: Sequence[Engines]
    ) -> tuple[DeviceLedger, Moments, bool]:
        """The ledger of a GPU that engines and trainers share, and moments as of `training_bytes`: they take no turns
        where both fit on it at once, the trainers' worst moment included, as far as all of it is known."""
        trainer, moments, complete = self.rank(layout, beside)
        worst = max((sum(held.values()) for held in moments.values()), default=0.0)
        # The worst moment is no part of what is kept, so the room is less by it.
        room = max(0.0, self.capacity_bytes - worst) if complete and engines.kv_tokens is not None else 0.0
        return self.ledger(self.engine(engines), trainer, room), moments, complete


@dataclass(frozen=True)
class JobMemory:
    """What the engines and trainers of a job hold on the pools that it has, by a profile; `dtype`: of its model."""

    profile: Profile
    pools: JobPools
    dtype: str

    @property
    def weight_bytes(self) -> int:
        """Bytes of an engine's parameter."""
        return WEIGHT_BYTES[self.dtype]

    @cached_property
    def of_engines(self) -> DeviceMemory:
        """Memory of a device of the engines' pool."""
        return DeviceMemory(self.profile, device_bytes(self.profile, self.pools.rollout), self.weight_bytes)

    @cached_property
    def of_trainers(self) -> DeviceMemory:
        """Memory of a device of the trainers' pool."""
        return DeviceMemory(self.profile, device_bytes(self.profile, self.pools.of_trainers), self.weight_bytes)

    def engines_alone(self, engines: Engines, kind: int = 0) -> list[MemoryUse]:
        """Uses of a device of the engines' pool by engines. On CPUs only their KV space is bounded."""
        side: Side = "engines" if self.pools.apart else "both"
        if self.pools.rollout.accelerators.kind == "cpu":
            return [self._kv_space(engines, kind, side)]
        device = self.of_engines
        _, held = device.step(device.engine(engines))
        return [
            MemoryUse("device", phase, kind, held[phase], {}, device.capacity_bytes, side=side)
            for phase in ("rollout", "sync")
        ]

    def on_devices(
        self, engines: Engines, trainers: UpdateLayout, kind: int = 0, beside: Sequence[Engines] = ()
    ) -> list[MemoryUse]:
        """Uses of a device by the engines and trainers of a kind of round that take turns on it; of each pool's where
        they have pools of their own. `beside`: engines of all kinds of round, beside which trainers keep what fits;
        none: any of the profile's."""
        if self.pools.apart:
            return self.engines_alone(engines, kind) + self.trainers_alone(trainers, kind)
        if self.pools.rollout.accelerators.kind == "cpu":
            return [self._kv_space(engines, kind, "both")]
        device = self.of_engines
        shared, moments, complete = device.shared(engines, trainers, beside)
        _, held = step_moves(shared, NO_TRAINER.name, [NO_ENGINE.name])
        return [
            MemoryUse("device", "rollout", kind, held["rollout"], {}, device.capacity_bytes),
            MemoryUse("device", "train", kind, held["train"], moments, device.capacity_bytes, complete),
            MemoryUse("device", "sync", kind, held["sync"], {}, device.capacity_bytes),
        ]

    def trainers_alone(self, trainers: UpdateLayout, kind: int = 0) -> list[MemoryUse]:
        """Uses of a device of a pool that trainers have to themselves, where nothing leaves it for engines."""
        device = self.of_trainers
        if self.pools.of_trainers.accelerators.kind == "cpu":
            return []
        trainer, moments, complete = device.rank(trainers, alone=True)
        _, held = device.step(trainer=trainer)
        return [
            MemoryUse("device", "train", kind, held["train"], moments, device.capacity_bytes, complete, "trainers"),
            MemoryUse("device", "sync", kind, held["sync"], {}, device.capacity_bytes, side="trainers"),
        ]

    def _kv_space(self, engines: Engines, kind: int, side: Side) -> MemoryUse:
        # Each rank of an engine is given the space of all its cores (executor/engines/fleet.py).
        tp, each = engines.layout.tp, self.pools.rollout.accelerators.memory_bytes
        return MemoryUse("device", "rollout", kind, {KV_CACHE: engines.kv_bytes / tp}, {}, tp * each, side=side)

    def trainers_on_host(
        self, layout: UpdateLayout, ranks: int, phase: Phase, beside: Sequence[Engines] = ()
    ) -> dict[str, float]:
        """Bytes of host memory that `ranks` trainer ranks of a layout hold in a phase; `beside`: engines that they take
        turns with, none: any of the profile's.

        In every phase that may be the copy that a checkpoint is written from while training goes on.
        """
        share = ranks * trained_parameters(self.profile, layout)
        on_cpu = self.pools.of_trainers.accelerators.kind == "cpu"
        reference = ranks * reference_bytes(self.profile, layout) if on_cpu or layout.reference == "host" else 0.0
        held = {"checkpoint_copy": share * CHECKPOINT_BYTES, "trainer_reference": reference}
        if on_cpu:
            held |= {PARAMETERS: ranks * kept_bytes(self.profile, layout), MOMENTS: share * MOMENT_BYTES}
            return {**held, "trainer_gradients": share * GRADIENT_BYTES} if phase == "train" else held
        held["trainer_processes"] = float(ranks * HOST_PROCESS_BYTES)
        # What ever leaves the GPU has page-locked memory of its own, which is not freed (local_tensors.host_zeros).
        trainer = self.of_trainers.trainer(layout, beside, self.pools.apart)
        return held | {part: ranks * size for part, size in trainer.on_host["offloaded"].items()}

    def rank_on_host(self, layout: UpdateLayout) -> tuple[float, ...]:
        """Bytes of host memory that one trainer rank of a layout holds, in each phase."""
        phases = PHASES if self.pools.of_trainers.accelerators.kind == "cpu" else PHASES[:1]  # a GPU's: all the same
        return tuple(sum(self.trainers_on_host(layout, 1, phase).values()) for phase in phases)

    def trainer_share(self, layout: UpdateLayout) -> HostShare:
        """Host memory of a layout's trainers and of weights in transfer, as shares that any number of nodes divide."""
        side: Side = "trainers" if self.pools.apart else "both"
        return HostShare(
            layout.accelerators // layout.tp,
            tuple(
                (
                    sum(self.trainers_on_host(layout, layout.tp, phase).values()),
                    self.weights_under_way(side) if phase == "sync" else 0.0,
                )
                for phase in PHASES
            ),
        )

    def weights_under_way(self, side: Side) -> float:
        """Bytes of host memory that weights on their way take on a node where `side` is: a whole copy of a model whose
        shape is unknown, which may be one large tensor."""
        whole, law = self.profile.sent_bytes(self.weight_bytes), self.profile.train_law
        if law is None:
            return whole
        shape = law.shape
        bucket = max(BUCKET_BYTES, self.weight_bytes * shape.hidden * max(shape.vocab, shape.intermediate))
        return min(whole, (LEAVING if side == "trainers" else ARRIVING) * bucket)

    def table(self, nodes: NodesTaken, kinds: Sequence[tuple[Engines, UpdateLayout]]) -> tuple[MemoryUse, ...]:
        """All uses of a plan: of each kind of round (engines and trainers) and phase a device and the host of a node;
        of each pool its own where there are two.

        Args:
            nodes: of the pools, that engines and trainers are spread over; a host's use is that of the fullest.
        """
        pools, layouts = self.pools, list({engines.layout: engines for engines, _ in kinds}.values())
        # One whose KV cache takes all that is free leaves what any of the profile's engines leaves.
        beside = [engines for engines, _ in kinds] if all(each.kv_tokens is not None for each, _ in kinds) else []
        engines_hold: dict[str, float] = {}
        for each in layouts:
            for name, size in engines_on_host(self.profile, each, nodes.rollout).items():
                engines_hold[name] = engines_hold.get(name, 0.0) + size
        uses: list[MemoryUse] = []
        for number, (engines, trainers) in enumerate(kinds):
            uses += self.on_devices(engines, trainers, number, beside)
            # Of the fullest node; tensor-parallel ranks stay together.
            spread = max(1, nodes.train if pools.apart else nodes.rollout)
            ranks = trainers.tp * -(-(trainers.accelerators // trainers.tp) // spread)
            for phase in PHASES:
                trainers_hold = self.trainers_on_host(trainers, ranks, phase, beside)
                if pools.train is None:
                    uses.append(self._host(pools.rollout, engines_hold | trainers_hold, number, phase, "both"))
                else:
                    uses.append(self._host(pools.rollout, engines_hold, number, phase, "engines"))
                    uses.append(self._host(pools.train, trainers_hold, number, phase, "trainers"))
        return tuple(uses)

    def _host(self, pool: Pool, kept: Parts, kind: int, phase: Phase, side: Side) -> MemoryUse:
        under_way = {"weights_under_way": self.weights_under_way(side)} if phase == "sync" else {}
        return MemoryUse("host", phase, kind, {**kept, **under_way}, {}, pool.host_memory_bytes, side=side)


def device_bytes(profile: Profile, pool: Pool) -> int:
    """Memory of an accelerator that may be planned with: as the cluster says, and no more than the data sheet does of
    the one that a law is of."""
    stated, physics = pool.accelerators.memory_bytes, train_physics(profile.train_law)
    return stated if physics is None else min(stated, physics.gpu.memory_bytes)


def engines_on_host(profile: Profile, engines: Engines, nodes: int) -> dict[str, float]:
    """Bytes of host memory that a layout's engines hold, in any phase, on the fullest of `nodes` nodes."""
    each = -(-engines.layout.engines // max(1, nodes))
    held: dict[str, float] = {"engine_processes": each * (engines.layout.tp + 2) * HOST_PROCESS_BYTES}
    if profile.machine.kind == "cpu":
        held["engine_weights"] = each * 4 * profile.model_parameters
        held[KV_CACHE] = each * engines.kv_bytes
    if profile.adapters is not None and profile.adapters.sent == "adapter":
        held["frozen_weights"] = float(profile.adapters.frozen_bytes * profile.model_parameters)
    return held
