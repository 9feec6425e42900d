"""Memory rules of a plan: its layouts must have costs in the profile, and fit into memory. Reads no file.

Holders of memory are those of the memory table (planner/costs/memory_table.py), and costs are those of `solve` and
`simulate` (round_costs.py), so `check` accepts what they accept.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...plans.check.finding import Fault
from ...plans.check.plan_fit import CLOSE, close
from ...plans.check.site_breaches import memory_bars
from ...plans.facts.model_shape import tp_sizes
from ...plans.facts.public_models import Architecture
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job
from ...plans.schema.levers import UpdateLayout
from ...plans.schema.plan import Plan
from ...plans.schema.planned_rounds import RoundRollout
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...profiles.laws.suspicions import measured_update
from ...profiles.laws.train_law import layout_faults
from ...profiles.library.fitness import less_memory
from ...profiles.profile_schema import Profile
from ..costs.decode_costs import DecodeCost, engines_of, entry_of, least_kv_tokens
from ..costs.draft_costs import draft_laws
from ..costs.job_pools import JobPools
from ..costs.memory_table import Engines, JobMemory, MemoryUse, device_bytes, fullest_host
from ..costs.round_costs import decode_of, judge_of, table_of, train_of
from ..costs.update_costs import law_dtype_fault


def priced(
    plan: Plan, job: Job, profile: Profile, pools: JobPools | None, model: Architecture | None
) -> Iterator[Fault]:
    """Faults of layouts without costs, and of memory that is too small. `pools`: of the plan, `model`: the
    shape of the job's; None if unknown."""
    planned, rounds = plan.job, plan.job.rounds
    kinds: list[tuple[Loc, RoundRollout, UpdateLayout]] = [
        (("job", "rounds", "short"), rounds.short.rollout, rounds.short.train)
    ]
    if rounds.long is not None:
        kinds.append((("job", "rounds", "long"), rounds.long.rollout, rounds.long.train))
    shape, per_node = _shape(profile, model, None if pools is None else pools.of_trainers)
    all_priced = True
    for location, rollout, train in kinds:
        cost: DecodeCost | None = None
        try:
            cost = decode_of(profile, rollout)
        except InputError as error:
            all_priced = False
            yield Fault.of("layout-unmeasured", (*location, "rollout"), error.message)
        else:
            most = engines_of(profile, rollout.layout).entry.kv_capacity_tokens
            wider = _wider(rollout.tp, None if pools is None else pools.rollout, shape)
            yield from _engine((*location, "rollout"), rollout, cost, job, most, wider)
        if rollout.drafts is not None:
            try:
                draft_laws(profile.drafts, job.search.drafts, rollout.drafts.tokens)
            except InputError as error:
                yield Fault.of("drafts-unpriced", (*location, "rollout", "drafts"), error.message)
        trains = list(_update((*location, "train"), train, job, profile, shape, per_node))
        yield from trains
        if cost is not None and pools is not None:
            engines = engines_of(profile, cost.key, rollout.kv_tokens)
            yield from _devices(location, engines, None if trains else train, job, profile, pools, wider)
    if planned.reward.judge is not None:
        try:
            judge_of(profile, planned.reward.judge)
        except InputError as error:
            yield Fault.of("judge-unpriced", ("job", "reward", "judge"), error.message)
    if pools is not None:
        if all_priced:
            yield from _hosts(plan, job, profile, pools)
        less = less_memory(profile, pools.rollout, rounds.short.rollout.pool)
        if less is not None:
            yield Fault.of("engine-memory", ("job", "rounds", "short", "rollout", "pool"), less)
        if pools.train is not None and planned.placement is not None:
            less = less_memory(profile, pools.train, planned.placement.train_pool)
            if less is not None:
                yield Fault.of("train-memory", ("job", "placement", "train_pool"), less)


def bars(plan: Plan) -> Iterator[Fault]:
    """Faults of memory bars that need more than their own capacity, by the plan's own figures."""
    for location, bar in memory_bars(plan):
        if bar.needed_bytes > bar.capacity_bytes * (1 + CLOSE):
            message = f"needs {bytes_text(bar.needed_bytes)}, and there are {bytes_text(bar.capacity_bytes)}"
            kind = str(location[-1])
            yield Fault(_RULES[kind], (*location, "needed_bytes"), message, _REMEDIES[kind])


def bars_as_they_are(plan: Plan, profile: Profile | None, pools: JobPools | None) -> Iterator[Fault]:
    """Faults of memory bars against today's inputs: KV by the profile's entry, trainers and hosts by the pools. A
    capacity that has changed is a fault of its own, unless what is needed exceeds the new one too."""
    rounds = plan.job.rounds
    layouts = {"short": rounds.short.rollout} | ({"long": rounds.long.rollout} if rounds.long else {})
    for location, bar in memory_bars(plan):
        kind = str(location[-1])
        if kind == "kv":
            rollout = layouts.get(str(location[2]))
            entry = rollout and profile and entry_of(profile, rollout.layout)
            room = entry.kv_capacity_tokens * entry.kv_bytes_per_token if entry else None
        elif kind == "train":
            room = device_bytes(profile, pools.of_trainers) if pools and profile else None
        else:
            # The bar is of the fuller pool's node, and the plan does not say which that is.
            rooms = [pool.host_memory_bytes for pool in (pools.rollout, pools.of_trainers)] if pools else []
            room = min(rooms, key=lambda size: abs(size - bar.capacity_bytes), default=None)
        # `bars` reports what exceeds the plan's own capacity.
        if room is None or close(room, bar.capacity_bytes) or bar.needed_bytes > bar.capacity_bytes * (1 + CLOSE):
            continue
        if bar.needed_bytes > room * (1 + CLOSE):
            planned = bytes_text(bar.capacity_bytes)
            message = (
                f"needs {bytes_text(bar.needed_bytes)}, and there are {bytes_text(room)} (the plan says {planned})"
            )
            yield Fault(_RULES[kind], (*location, "needed_bytes"), message, _REMEDIES[kind])
        else:
            message = f"is {bytes_text(bar.capacity_bytes)}, and {_SOURCES[kind]} makes it {bytes_text(room)}"
            yield Fault("capacity-contradicts-inputs", (*location, "capacity_bytes"), message, "solve again")


_RULES = {"kv": "kv-preempts", "train": "train-memory", "host_memory": "host-memory"}
_REMEDIES = {
    "kv": "decode fewer at once (max_num_seqs), or take more accelerators per engine",
    "train": "shard further (dp, tp, sp), recompute activations, offload, or take smaller micro-batches",
    "host_memory": (
        "take fewer engines, one layout for both kinds of round, no offload, more nodes, or such with more host memory"
    ),
}
_SOURCES = {"kv": "the profile's layout", "train": "the pool's accelerator", "host_memory": "the pool's node"}
_DOING = {"rollout": "while engines decode", "train": "while trainers train", "sync": "while weights travel"}


def _shape(profile: Profile, model: Architecture | None, pool: Pool | None) -> tuple[Architecture | None, int]:
    """(the model's shape where it is known and not guessed, accelerators of a node, among which tensor ranks stay)."""
    per_node = pool.accelerators.per_node if pool is not None else 4096
    if profile.train_law is not None:
        return profile.train_law.shape, profile.train_law.accelerators_per_node
    return (None if model is None or model.guessed else model), per_node


def _engine(
    location: Loc, rollout: RoundRollout, cost: DecodeCost, job: Job, most_kv: int, wider: str
) -> Iterator[Fault]:
    longest, planned = job.rollout.longest_tokens, rollout.kv_tokens
    drafts = rollout.drafts.tokens if rollout.drafts else 0
    least = min(most_kv, least_kv_tokens(longest, drafts, cost.block_tokens))
    if most_kv < longest:
        message = f"an engine holds {most_kv} KV tokens, the longest sequence has {longest}"
        yield Fault("kv-below-longest", (*location, "tp"), message, f"{wider}, or lower the job's cap")
    elif planned is not None and planned < least:
        message = f"is {planned}; the longest sequence, of {longest} tokens, needs {least} (whole blocks of vLLM)"
        yield Fault("kv-below-longest", (*location, "kv_tokens"), message, f"write at least {least}, or null")
    elif planned is not None and planned > most_kv:
        message = f"is {planned}, and an engine holds {most_kv} KV tokens at most"
        yield Fault("engine-memory", (*location, "kv_tokens"), message, f"write at most {most_kv}, or null")
    if rollout.max_num_seqs > cost.max_sequences:
        message = f"is {rollout.max_num_seqs}, and at most {cost.max_sequences} at once were measured"
        yield Fault("batch-unmeasured", (*location, "max_num_seqs"), message, f"write at most {cost.max_sequences}")


def _update(
    location: Loc, train: UpdateLayout, job: Job, profile: Profile, shape: Architecture | None, per_node: int
) -> Iterator[Fault]:
    uneven = list(layout_faults(shape, train, per_node)) if shape is not None else []
    for field, why in uneven:
        yield Fault("train-layout", (*location, field), why, f"write another {field}, or solve again")
    if uneven:
        return
    measured = measured_update(profile.train, train) is not None
    dtype_fault = None if measured else law_dtype_fault(profile, job.model.dtype, job.model.head_dtype)
    if dtype_fault is not None:
        yield Fault.of("update-unmeasured", location, dtype_fault)
        return
    try:
        train_of(profile, train)
    except InputError as error:
        yield Fault.of("update-unmeasured", location, error.message)


def _devices(
    location: Loc,
    engines: Engines,
    train: UpdateLayout | None,
    job: Job,
    profile: Profile,
    pools: JobPools,
    wider: str,
) -> Iterator[Fault]:
    """Faults of a round kind's engines and trainers that an accelerator cannot hold; `train`: None if it is at
    fault."""
    memory = JobMemory(profile, pools, job.model.dtype)
    short = [use for use in memory.engines_alone(engines) if not use.fits]
    for use in short:
        remedy = f"{wider}, or profile on these"
        yield Fault("engine-memory", (*location, "rollout", "tp"), _beyond(use), remedy)
    if train is None:
        return
    # Phases that the engines alone outgrow were reported.
    reported = {(use.side, use.phase) for use in short}
    for use in memory.on_devices(engines, train, beside=[] if engines.kv_tokens is None else [engines]):
        if not use.fits and (use.side, use.phase) not in reported:
            fewer = f"write a state_copies below {train.state_copies}, " if train.state_copies > 1 else ""
            yield Fault("train-memory", (*location, "train"), _beyond(use), fewer + _REMEDIES["train"])


def _wider(tp: int, pool: Pool | None, shape: Architecture | None) -> str:
    """What gives an engine of `tp` more memory: more accelerators of a node that share the model's heads, if any."""
    most = 4096 if pool is None else pool.accelerators.per_node
    sizes = range(tp + 1, most + 1) if shape is None else [size for size in tp_sizes(shape, most) if size > tp]
    return "take more accelerators per engine" if sizes else "take accelerators with more memory"


def _hosts(plan: Plan, job: Job, profile: Profile, pools: JobPools) -> Iterator[Fault]:
    """The fault of a node's host memory that is too small, on as many nodes as the pools have."""
    use = fullest_host(table_of(plan.job, JobMemory(profile, pools, job.model.dtype), pools.whole))
    if not use.fits:
        yield Fault("host-memory", ("job", "rounds"), _beyond(use), _REMEDIES["host_memory"])


def _beyond(use: MemoryUse) -> str:
    place = "an accelerator" if use.place == "device" else "a node's host"
    return f"{_DOING[use.phase]}, {place} holds {use.held_text}, and it has {bytes_text(use.capacity_bytes)}"
