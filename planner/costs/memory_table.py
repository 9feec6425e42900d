"""The memory table: the bytes that engines and trainers hold on devices and hosts, in each phase of a round.

`memory_table` is asked by solve (what does not fit is no candidate; a plan's predicted memory), check, simulate, show
and execute. It is a pure function of the profile, the pools, and the engines and trainers of each kind of round. A bar
is what one place holds in one phase: what is there all the time, and the largest of a few moments. Bars are never
summed.

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
- Offloaded, AdamW's moments are in host memory in every phase; while the optimizer steps, those of a few parameters
  at a time are on the device. Parameters and gradients are not offloaded.
- A host holds the copy of parameters and moments that a checkpoint is written from while training goes on.
- While weights travel, engines hold weights and no KV cache, and the trainer has its parameters on the device. They
  travel in pieces, of which a node holds a few buckets in host memory (host_memory.weights_under_way). Where they
  cannot, they go by a file, for which the node of the trainer's first rank needs a whole copy: that is not counted.
- On CPUs the memory of devices is the KV space that an engine may take per core, and each of its ranks is given that of
  all its cores (executor/engines/fleet.py). All of it is held in host memory: engines of all layouts stay awake, and a
  trainer keeps parameters, gradients and optimizer in float32.

Left out, since nothing is known of them: processes of reward workers (a job's reward.memory_bytes limits an address
space and says nothing of what is held) and of trainers on CPUs, activations where the profile measured no peak, and
what drafts come from: responses on the driver's host (512 MiB at most, executor/drafts/history_store.py) and the
engines' indexes of those to their prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...plans.schema.cluster import Pool
from ...plans.schema.levers import UpdateLayout
from ...profiles.profile_schema import Profile
from .device_memory import device_bars, trainer_bars
from .host_memory import engines_on_host, ranks_on_node, trainers_on_host, weights_under_way
from .job_pools import JobPools, NodesTaken
from .memory_bars import PHASES, Bar, Engines, Phase, Side


def memory_table(
    profile: Profile,
    pools: JobPools,
    weight_bytes: float,
    nodes: NodesTaken,
    kinds: Sequence[tuple[Engines, UpdateLayout]],
) -> tuple[Bar, ...]:
    """All bars of a plan: of each kind of round (engines and trainers) and phase a device and the host of a node; of
    each pool its own where there are two.

    Args:
        weight_bytes: of an engine's parameter (`WEIGHT_BYTES`).
        nodes: of the pools, that engines and trainers are spread over; a bar of a host is that of the fullest.
    """
    layouts = list({engines.layout: engines for engines, _ in kinds}.values())
    # One whose KV cache takes all that is free leaves what any of the profile's engines leaves.
    beside = [engines for engines, _ in kinds] if all(each.kv_tokens is not None for each, _ in kinds) else []
    bars: list[Bar] = []
    for number, (engines, trainers) in enumerate(kinds):
        if pools.train is None:
            bars += device_bars(profile, pools.rollout, weight_bytes, engines, trainers, number, beside=beside)
        else:
            bars += device_bars(profile, pools.rollout, weight_bytes, engines, None, number, "engines")
            bars += trainer_bars(profile, pools.train, weight_bytes, trainers, number)
        for phase in PHASES:
            of_engines: dict[str, float] = {}
            for held in [engines_on_host(profile, each, nodes.rollout) for each in layouts]:
                _add(of_engines, held)
            ranks = ranks_on_node(trainers, nodes.rollout if pools.train is None else nodes.train)
            of_trainers = trainers_on_host(
                profile, pools.of_trainers, weight_bytes, trainers, ranks, phase, pools.apart, beside
            )
            if pools.train is None:
                _add(of_engines, of_trainers)
                bars.append(_host(profile, weight_bytes, pools.rollout, of_engines, number, phase, "both"))
            else:
                bars.append(_host(profile, weight_bytes, pools.rollout, of_engines, number, phase, "engines"))
                bars.append(_host(profile, weight_bytes, pools.train, of_trainers, number, phase, "trainers"))
    return tuple(bars)


def _host(
    profile: Profile, weight_bytes: float, pool: Pool, kept: dict[str, float], kind: int, phase: Phase, side: Side
) -> Bar:
    under_way = {"weights_under_way": weights_under_way(profile, weight_bytes, side)} if phase == "sync" else {}
    return Bar("host", phase, kind, {**kept, **under_way}, {}, pool.host_memory_bytes, side=side)


def _add(to: dict[str, float], more: Mapping[str, float]) -> None:
    for name, size in more.items():
        to[name] = to.get(name, 0.0) + size
