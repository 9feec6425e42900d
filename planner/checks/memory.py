"""What a job's plan asks of its profile: layouts with known costs, and memory that holds. Reads no file.

Rollout and training are two bars that are never summed: engines sleep while a trainer trains (profiles/memory.py).
The costs are those that `solve` and `simulate` work with (kinds.py), so nothing is refused here that they accept.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...plans.checks.finding import Fault
from ...plans.checks.policy_rules import memory_bars
from ...plans.checks.predictions import CLOSE, close, nodes_taken
from ...plans.cluster import Pool
from ...plans.errors import InputError
from ...plans.job import Job
from ...plans.plan import Plan, RoundRollout, RoundTrain
from ...plans.yaml_doc import Loc
from ...profiles.architecture import Architecture, architecture_of
from ...profiles.schema import Profile
from ...profiles.train_layouts import MEMORY_SHARE, physics_of
from ...profiles.train_model import TrainLayout, layout_faults
from ..candidates import less_memory
from ..costs import DecodeCost, LayoutKey, entry_of
from ..kinds import decode_of, judge_of, train_of

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def priced(plan: Plan, job: Job, profile: Profile, pool: Pool | None) -> Iterator[Fault]:
    """Layouts without costs, and memory that does not hold. `pool`: the one that the rounds run on, None if unknown."""
    planned, rounds = plan.job, plan.job.rounds
    kinds: list[tuple[Loc, RoundRollout, RoundTrain]] = [
        (("job", "rounds", "short"), rounds.short.rollout, rounds.short.train)
    ]
    if rounds.long is not None:
        kinds.append((("job", "rounds", "long"), rounds.long.rollout, rounds.long.train))
    shape, per_node = _shape(profile, job, pool)
    costs: list[DecodeCost] = []
    for at, rollout, train in kinds:
        try:
            cost = decode_of(profile, rollout)
        except InputError as error:
            yield _fault("layout-unmeasured", (*at, "rollout"), error.message)
        else:
            costs.append(cost)
            yield from _engine((*at, "rollout"), rollout, cost, plan, job, profile, pool)
        if rollout.drafts is not None and job.search.drafts is None:
            what = "the job does not say how many of their tokens are accepted"
            remedy = "write search.drafts: {tokens: [...], acceptance: ...} in the job, or drafts: null here"
            yield Fault("drafts-unpriced", (*at, "rollout", "drafts"), what, remedy)
        yield from _update((*at, "train"), train, profile, pool, shape, per_node)
    if planned.reward.judge is not None:
        try:
            judge_of(profile, planned.reward.judge)
        except InputError as error:
            yield _fault("judge-unpriced", ("job", "reward", "judge"), error.message)
    if pool is not None:
        yield from _host(costs, pool)
        less = less_memory(profile, pool, rounds.short.rollout.pool)
        if less is not None:
            yield _fault("engine-memory", ("job", "rounds", "short", "rollout", "pool"), less)


def bars(plan: Plan) -> Iterator[Fault]:
    """Memory that, as the plan itself predicts it, does not hold."""
    for loc, bar in memory_bars(plan):
        if bar.needed_bytes > bar.capacity_bytes * (1 + CLOSE):
            what = f"needs {_gb(bar.needed_bytes)}, and there are {_gb(bar.capacity_bytes)}"
            kind = str(loc[-1])
            yield Fault(_RULES[kind], (*loc, "needed_bytes"), what, _REMEDIES[kind])


def bars_as_they_are(plan: Plan, profile: Profile | None, pool: Pool | None) -> Iterator[Fault]:
    """Memory bars against the memory that there is: KV by the profile's entry, trainers and hosts by the pool. A bar
    whose capacity is no longer so is a finding of its own, unless what is needed does not fit there either."""
    rounds = plan.job.rounds
    layouts = {"short": rounds.short.rollout} | ({"long": rounds.long.rollout} if rounds.long else {})
    for loc, bar in memory_bars(plan):
        kind = str(loc[-1])
        if kind == "kv":
            layout = layouts.get(str(loc[2]))
            entry = layout and profile and entry_of(profile, LayoutKey(layout.tp, layout.engines))
            room = entry.kv_capacity_tokens * entry.kv_bytes_per_token if entry else None
        elif kind == "train":
            room = pool.accelerators.memory_bytes if pool else None
        else:  # a wrong number of nodes is a finding of its own
            nodes = nodes_taken(plan, pool) if pool else None
            room = nodes * pool.host_memory_bytes if pool and nodes == plan.predicted.nodes else None
        # What does not hold by the plan's own word is told by `bars`.
        if room is None or close(room, bar.capacity_bytes) or bar.needed_bytes > bar.capacity_bytes * (1 + CLOSE):
            continue
        if bar.needed_bytes > room * (1 + CLOSE):
            what = f"needs {_gb(bar.needed_bytes)}, and there are {_gb(room)} (the plan says {_gb(bar.capacity_bytes)})"
            yield Fault(_RULES[kind], (*loc, "needed_bytes"), what, _REMEDIES[kind])
        else:
            what = f"is {_gb(bar.capacity_bytes)}, and {_SOURCES[kind]} makes it {_gb(room)}"
            yield Fault("capacity-contradicts-inputs", (*loc, "capacity_bytes"), what, "solve again")


_RULES = {"kv": "kv-preempts", "train": "train-memory", "host_memory": "host-memory"}
_REMEDIES = {
    "kv": "decode fewer at once (max_num_seqs), or take more accelerators per engine",
    "train": "shard further (tp, pp), recompute activations, offload, or take smaller micro-batches",
    "host_memory": "take fewer engines, one layout for both kinds of round, or nodes with more host memory",
}
_SOURCES = {"kv": "the profile's layout", "train": "the pool's accelerator", "host_memory": "the pool's nodes"}


def _gb(size: float) -> str:
    return f"{size / 1e9:.4g} GB"


def _shape(profile: Profile, job: Job, pool: Pool | None) -> tuple[Architecture | None, int]:
    """The model's shape where it is known and not guessed, and the accelerators among which tensor ranks stay."""
    per_node = pool.accelerators.per_node if pool is not None else 4096
    if profile.train_law is not None:
        try:
            return physics_of(profile.train_law).architecture, profile.train_law.accelerators_per_node
        except ValueError:
            return None, per_node  # pricing the update says so
    shape = architecture_of(job.model.path)
    return (None if shape is None or shape.guessed else shape), per_node


def _engine(
    at: Loc, rollout: RoundRollout, cost: DecodeCost, plan: Plan, job: Job, profile: Profile, pool: Pool | None
) -> Iterator[Fault]:
    longest = job.rollout.longest_tokens
    if cost.kv_capacity_tokens < longest:
        what = f"an engine holds {cost.kv_capacity_tokens} KV tokens, the longest sequence has {longest}"
        yield Fault("kv-below-longest", (*at, "tp"), what, "take more accelerators per engine, or lower the job's cap")
    if rollout.max_num_seqs > cost.max_sequences:
        what = f"is {rollout.max_num_seqs}, and at most {cost.max_sequences} at once were measured"
        yield Fault("batch-unmeasured", (*at, "max_num_seqs"), what, f"write at most {cost.max_sequences}")
    if pool is None:
        return
    entry = entry_of(profile, cost.key)
    assert entry is not None, "it was priced by it"
    room = rollout.tp * pool.accelerators.memory_bytes
    kv = entry.kv_capacity_tokens * entry.kv_bytes_per_token
    # Of a CPU's accelerators the memory is the KV space alone.
    weights = profile.model_parameters * DTYPE_BYTES[job.model.dtype] if pool.accelerators.kind == "cuda" else 0
    if weights + kv > room:
        what = (
            f"an engine of tp {rollout.tp} holds {weights / 1e9:.4g} GB of weights and {kv / 1e9:.4g} GB of KV cache, "
            f"and its accelerators {room / 1e9:.4g} GB"
        )
        yield Fault("engine-memory", (*at, "tp"), what, "take more accelerators per engine, or profile on these")


def _update(
    at: Loc, train: RoundTrain, profile: Profile, pool: Pool | None, shape: Architecture | None, per_node: int
) -> Iterator[Fault]:
    layout = TrainLayout(
        train.dp, train.tp, train.cp, train.pp, train.ep, train.micro_batch_tokens, train.recompute, train.offload
    )
    uneven = list(layout_faults(shape, layout, per_node)) if shape is not None else []
    for field, why in uneven:
        yield Fault("train-layout", (*at, field), why, f"write another {field}, or solve again")
    if uneven:
        return
    try:
        cost = train_of(profile, train)
    except InputError as error:
        yield _fault("update-unmeasured", at, error.message)
        return
    if pool is None or pool.accelerators.kind != "cuda":
        return
    room, has = float(pool.accelerators.memory_bytes), "its accelerator has"
    if profile.train_law is not None:  # what solve holds a law to, whose accelerator is the data sheet's
        whole = physics_of(profile.train_law).gpu.memory_bytes
        room, has = MEMORY_SHARE * whole, f"of the {_gb(whole)} of its accelerator a plan may fill"
    if cost.peak_bytes > room:
        what = f"a trainer needs {_gb(cost.peak_bytes)} at its peak, and {has} {_gb(room)}"
        yield Fault("train-memory", at, what, _REMEDIES["train"])


def _host(costs: list[DecodeCost], pool: Pool) -> Iterator[Fault]:
    """Engines of both kinds of round stay in host memory; one set of them where both have the same layout."""
    held = {cost.key: cost.host_bytes for cost in costs}
    room = pool.nodes * pool.host_memory_bytes
    if sum(held.values()) > room:
        taken, layouts = sum(held.values()) / 1e9, " and ".join(str(key) for key in held)
        what = f"the engines of {layouts} take {taken:.4g} GB of host memory, and there are {room / 1e9:.4g}"
        remedy = "run both kinds of round on one layout, or add host memory"
        yield Fault("host-memory", ("job", "rounds"), what, remedy)


def _fault(rule: str, loc: Loc, message: str) -> Fault:
    what, _, remedy = message.partition("; ")
    return Fault(rule, loc, what, remedy)
