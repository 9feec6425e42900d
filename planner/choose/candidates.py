"""Which rounds are worth simulating: over-issue, cutoffs, copies and layouts that the cluster can hold.

A *law* is what decides whom a short round defers: (mode, prompts, samples, cutoff_tokens). A long round belongs to a
law, since it runs the prompts that such short rounds defer. In `exact` the law is the cutoff alone: which draws count
does not depend on how many are issued. In `predict` it is the share of the prompts that go to long rounds unseen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from ...plans.facts.executable import update_faults
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.base import Mode
from ...plans.schema.cluster import Cluster, Pool
from ...plans.schema.job import Job
from ...plans.schema.sections.layouts import EngineLayout, UpdateLayout
from ...plans.yaml.errors import Infeasible
from ...profiles.fitness import differences, machine_of
from ...profiles.hardware import gpu_of
from ...profiles.profile_schema import Profile
from ...rounds.round_spec import prompts_wanted
from ..costs.colocation import shares_gpus
from ..costs.decode_costs import DecodeCost, layout_cost
from ..costs.draft_costs import DraftedCost, affordable
from ..costs.host_memory import Share
from ..costs.memory_bars import WEIGHT_BYTES
from ..costs.update_costs import TrainCost, train_cost, train_costs
from ..lengths.length_model import LengthModel
from .job_limits import must_be_plannable
from .memory_fit import engines_fault, fitting_beside
from .no_candidates import LEAST_SHORT, Rule, no_cutoff, no_tp, no_update, over_issue, too_wasteful

MODES: tuple[Mode, ...] = get_args(Mode)

# Over-issue of prompts and of samples, and quantiles of the longest sample of a group to cut at. The published sweep
# (refs/rollpacker.md 1.3) has 1, 1.125, 1.25 and 1.5 for both.
PROMPT_FACTORS = (1.0, 1.0625, 1.125, 1.25, 1.5)
SAMPLE_FACTORS = (1.0, 1.125, 1.25, 1.5)
CUTOFF_LEVELS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97)
# Prompts issued in `exact`, over the P / P(short) that are needed on average: fewer means refills, more means waste.
ROW_FACTORS = (1.05, 1.2, 1.4)
COPIES = (1, 2)
# Of the prompts, those with the longest history, that get long rounds in `predict`.
LONG_SHARES = (0.1, 0.2, 0.3, 0.5)

# GPUs report a little less memory than their data sheet gives.
LEAST_MEMORY_SHARE = 0.9

# bfloat16 weights, float32 master weights and both Adam moments.
STATE_BYTES_PER_PARAMETER = 14
# A sleeping vLLM engine of 30B parameters on one GPU wakes in 2.9 s (vLLM's sleep mode on A100, 61 GB of weights).
WAKE_BYTES_PER_S = 21e9

# Cutoffs are rounded to this many tokens: a plan should not change with the last token of a trace.
CUTOFF_GRAIN_TOKENS = 8


class Law(NamedTuple):
    """What decides whom a short round defers; `prompts` and `samples` are 0 in `exact`, `cutoff_tokens` is None
    elsewhere.

    `long_share` is of `predict`, and 0 elsewhere.
    """

    mode: Mode
    prompts: int
    samples: int
    cutoff_tokens: int | None
    long_share: float = 0.0


class ShortKey(NamedTuple):
    """A kind of short round; `draft_tokens` are drafted a step, 0 for no drafts."""

    mode: Mode
    prompts: int
    samples: int
    cutoff_tokens: int | None
    layout: EngineLayout
    long_share: float = 0.0
    draft_tokens: int = 0

    @property
    def law(self) -> Law:
        """Whom it defers."""
        if self.mode == "exact":
            return Law("exact", 0, 0, self.cutoff_tokens)
        return Law(self.mode, self.prompts, self.samples, None, self.long_share)


class LongKey(NamedTuple):
    """A kind of long round; half of its engines train once a share `hand_over` of its samples ended, 0 for never."""

    law: Law
    copies: int
    layout: EngineLayout
    draft_tokens: int = 0
    hand_over: float = 0.0

    @property
    def freed_engines(self) -> int:
        """Engines that are handed over."""
        return self.layout.engines // 2 if self.hand_over else 0


@dataclass(frozen=True)
class Space:
    """All candidates, sorted; `decode` and `train` hold the costs of the layouts and micro-batches that are feasible.

    `host_memory_bytes` are those of a node; `refused` says, for each layout that was left out, why; `reshard_s` and
    `layout_switch_s` are seconds of changing shards and engines between kinds of round. `drafted`: costs with drafts,
    by layout and drafted tokens.
    `kept_together`: the share of a rollout that layouts save by keeping a prompt's samples together, if they do.
    `train_host`: of each of `train`, the host memory of its trainers.
    """

    pool: str
    decode: dict[EngineLayout, DecodeCost]
    train: tuple[TrainCost, ...]
    short: tuple[ShortKey, ...]
    long: tuple[LongKey, ...]
    host_memory_bytes: int
    refused: tuple[str, ...]
    reshard_s: float = 0.0
    layout_switch_s: float = 0.0
    drafted: dict[tuple[EngineLayout, int], DraftedCost] = field(default_factory=dict)
    kept_together: dict[EngineLayout, float] = field(default_factory=dict)
    train_host: tuple[Share, ...] = ()

    @property
    def sharding(self) -> tuple[int, ...]:
        """For each update choice a number; those that shard the model alike have the same one."""
        kinds = [(t.layout.dp, t.layout.tp, t.layout.pp, t.layout.ep) for t in self.train]
        return tuple(kinds.index(kind) for kind in kinds)


def enumerate_space(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    model: LengthModel,
    modes: Sequence[Mode],
    fewer_nodes: bool = False,
    prompts: int | None = None,
) -> Space:
    """The candidates of `modes`. Raises Infeasible, naming why, when no layout or update is left, or no forced mode;
    Unplannable (job_limits.py) for a job or a pool that is refused at once.

    `fewer_nodes`: also those that leave nodes of the pool unused. `prompts`: how many the data set holds, None for as
    many as any round wants; rounds that want more are left out.
    """
    pool, decode, refused = feasible_layouts(cluster, job, profile, fewer_nodes)
    must_be_plannable(job, pool, cluster.pools[pool], profile)
    train = feasible_train(cluster, job, profile, pool, fewer_nodes)
    train, train_host = fitting_beside(train, decode, profile, cluster.pools[pool], WEIGHT_BYTES[job.model.dtype])
    target, size = job.rollout.prompts_per_step, job.rollout.samples_per_prompt
    cap = job.rollout.max_response_tokens
    rules: set[Rule] = set()
    if "sync" in modes:
        rules.add(("sync", target, size, None))
    issued = sorted({round(target * f) for f in PROMPT_FACTORS} | {target + 1})
    samples = sorted({round(size * f) for f in SAMPLE_FACTORS} | {size + 1})
    if "race" in modes:
        rules |= {("race", p, n, None) for p in issued for n in samples if n > size}
    if "defer" in modes:
        rules |= {("defer", p, size, None) for p in issued if p > target}
    if "exact" in modes:
        tried = cutoffs(model, size, cap)
        if not tried and len(modes) == 2:
            raise Infeasible(no_cutoff(model, size, cap))
        for cutoff_tokens in tried:
            needed = target / model.short_groups(cutoff_tokens, size)
            rules |= {("exact", max(target, math.ceil(needed * f)), size, cutoff_tokens) for f in ROW_FACTORS}
    most = job.search.max_over_issue
    allowed = {rule for rule in rules if over_issue(rule[1], rule[2], target, size) <= most}
    wasteful = too_wasteful(rules, allowed, target, size, most)
    short = [ShortKey(*rule, layout) for rule in sorted(allowed) for layout in decode]
    if "predict" in modes:
        short += [ShortKey("predict", target, size, None, layout, share) for share in LONG_SHARES for layout in decode]
    if wasteful is not None:
        if len(modes) == 2 and not any(key.mode == modes[-1] for key in short):
            raise Infeasible(f"{wasteful}; raise it, or plan mode sync")
        refused = (*refused, wasteful)
    if prompts is not None:
        short, without = _with_prompts(short, target, prompts)
        if without is not None and len(modes) == 2:
            raise Infeasible(f"{without}; add prompts, or plan mode sync")
        refused = refused if without is None else (*refused, without)
    short.sort()
    laws = sorted({s.law for s in short if defers(s.law, target)})
    drafted = _drafted(job, decode)
    long = [
        LongKey(law, copies, layout, tokens, share)
        for law in laws
        for copies in ([c for c in COPIES if c <= most] if law.mode == "exact" else (1,))
        for layout in decode
        for tokens in (0, *(g for key, g in drafted if key == layout))
        for share in (0.0, *(job.search.hand_over if layout.engines > 1 else ()))
    ]
    short += [key._replace(draft_tokens=g) for key in short for layout, g in drafted if layout == key.layout]
    node = cluster.pools[pool]
    return Space(
        pool=pool,
        decode=decode,
        train=train,
        short=tuple(short),
        long=tuple(long),
        host_memory_bytes=node.host_memory_bytes,
        refused=refused,
        reshard_s=_reshard_s(profile, node),
        layout_switch_s=_layout_switch_s(profile),
        drafted=drafted,
        train_host=train_host,
    )


def _with_prompts(keys: Sequence[ShortKey], target: int, prompts: int) -> tuple[list[ShortKey], str | None]:
    """(rounds that find what they issue among so many prompts, what to say if a mode has none; None if all have)."""
    wanted = {key: prompts_wanted(key.mode, target, key.prompts, key.long_share) for key in keys}
    found = [key for key in keys if wanted[key] <= prompts]
    gone = {key.mode for key in keys} - {key.mode for key in found}
    if not gone:
        return found, None
    least = {mode: min(count for key, count in wanted.items() if key.mode == mode) for mode in sorted(gone)}
    needs = ", ".join(f"{mode} {count}" for mode, count in least.items())
    return found, f"the data has {prompts} prompts; a round's and those that wait for another are at least: {needs}"


def _drafted(job: Job, decode: dict[EngineLayout, DecodeCost]) -> dict[tuple[EngineLayout, int], DraftedCost]:
    """Costs with drafts where the job considers them and they make some batch faster."""
    drafts = job.search.drafts
    if drafts is None:
        return {}
    found = {(key, g): affordable(cost, g, drafts.acceptance) for key, cost in decode.items() for g in drafts.tokens}
    return {key: cost for key, cost in found.items() if cost is not None}


def _reshard_s(profile: Profile, pool: Pool) -> float:
    """Seconds to move the model's training state between two shardings, over the network of all accelerators at once.

    Only a law has shardings to change between.
    """
    if profile.train_law is None:
        return 0.0
    moved = STATE_BYTES_PER_PARAMETER * profile.model_parameters
    return moved / (pool.accelerators_total * profile.train_law.fabric_bytes_per_s)


def _layout_switch_s(profile: Profile) -> float:
    """Seconds to wake the engines of another layout on the same GPUs; on a CPU both layouts stay awake.

    Where engines sleep and wake in every step (colocation.py), those of another layout wake in the place of the others.
    """
    if profile.machine.kind != "cuda" or shares_gpus(profile):
        return 0.0
    return 2 * profile.model_parameters / min(r.tp for r in profile.rollout) / WAKE_BYTES_PER_S


def defers(law: Law, target: int) -> bool:
    """Whether rounds of this law put prompts off."""
    return law.mode in ("exact", "predict") or (law.mode in ("race", "defer") and law.prompts > target)


def cutoffs(model: LengthModel, group_size: int, cap_tokens: int) -> tuple[int, ...]:
    """Cutoffs to try: rounded quantiles of a group's longest sample, below the cap, with short groups to train."""
    raw = model.group_max_quantiles(group_size, CUTOFF_LEVELS)
    grain = CUTOFF_GRAIN_TOKENS
    rounded = sorted({max(1, min(round(c / grain) * grain, cap_tokens - 1)) for c in raw if c < cap_tokens})
    return tuple(c for c in rounded if LEAST_SHORT <= model.short_groups(c, group_size) < 1.0)


def feasible_layouts(
    cluster: Cluster, job: Job, profile: Profile, fewer_nodes: bool = False
) -> tuple[str, dict[EngineLayout, DecodeCost], tuple[str, ...]]:
    """(pool, costs by layout, why others were refused). Raises Infeasible when none is left.

    The pool is the first by name that is like the profiled machine, else the first whose accelerators are of its kind.
    Engines on GPUs do not wait for each other, so an entry prices as many of them as there are GPUs (costs.entry_of).
    """
    kind = profile.machine.kind
    pools = [name for name, pool in sorted(cluster.pools.items()) if pool.accelerators.kind == kind]
    pools.sort(key=lambda name: bool(differences(profile, machine_of(cluster.pools[name]))))
    if not pools:
        raise Infeasible(
            f"the profile was measured on {kind} accelerators and cluster '{cluster.name}' has no pool of that kind; "
            "add one or profile on this cluster"
        )
    pool = cluster.pools[pools[0]]
    short_of = less_memory(profile, pool, pools[0])
    if short_of is not None:
        raise Infeasible(short_of)
    decode: dict[EngineLayout, DecodeCost] = {}
    refused: list[str] = []
    for tp in sorted({entry.tp for entry in profile.rollout}):
        counts = {entry.engines for entry in profile.rollout if entry.tp == tp}
        if kind == "cuda":
            # One engine that was measured stands for as many as there are GPUs; on GPUs nobody plans a single one.
            counts = {count for count in counts if count > 1}
            counts |= {n * (pool.accelerators.per_node // tp) for n in node_counts(pool, fewer_nodes)}
        for count in sorted(counts):
            cost = layout_cost(profile, EngineLayout(tp, count))
            assert cost is not None, "there is an entry of this tp"
            fault = _layout_fault(cost, job, profile, pool, pools[0])
            if fault is None:
                decode[cost.key] = cost
            else:
                refused.append(f"{cost.key}: {fault}")
    if not decode:
        raise Infeasible(f"no rollout layout of the profile fits: {no_tp(job, profile) or '; '.join(refused)}")
    return pools[0], decode, tuple(refused)


def less_memory(profile: Profile, pool: Pool, name: str) -> str | None:
    """Why the profile's KV space and updates do not hold on the pool's accelerators; None if they do."""
    sheet = gpu_of(profile.machine.accelerator) if profile.machine.kind == "cuda" else None
    if sheet is None or pool.accelerators.memory_bytes >= LEAST_MEMORY_SHARE * sheet.memory_bytes:
        return None
    return (
        f"the profile is of accelerators with {bytes_text(sheet.memory_bytes)}, those of pool '{name}' have "
        f"{bytes_text(pool.accelerators.memory_bytes)}; its KV space and updates do not hold there"
    )


def _layout_fault(cost: DecodeCost, job: Job, profile: Profile, pool: Pool, name: str) -> str | None:
    """Why a layout cannot be used."""
    tp, engines = cost.key.tp, cost.key.engines
    longest = job.rollout.longest_tokens
    if tp not in job.search.tp:
        return f"tp {tp} is not in the job's search.tp"
    if engines < 1 or engines > pool.engines_of(tp):
        return f"needs {max(engines, 1) * tp} accelerators, pool '{name}' has {pool.accelerators_total}"
    if cost.kv_capacity_tokens < longest:
        return f"an engine holds {cost.kv_capacity_tokens} KV tokens, the longest sequence has {longest}"
    return engines_fault(profile, pool, WEIGHT_BYTES[job.model.dtype], cost.key)


def node_counts(pool: Pool, fewer: bool) -> list[int]:
    """All nodes of the pool; if fewer will do, powers of two below that as well."""
    return [*(n for n in (2**k for k in range(pool.nodes.bit_length())) if fewer and n < pool.nodes), pool.nodes]


def feasible_train(
    cluster: Cluster, job: Job, profile: Profile, pool_name: str, fewer_nodes: bool = False
) -> tuple[TrainCost, ...]:
    """Ways to update that hold the longest sequence, without those that another one beats in every term of its cost
    and, where the job considers handing engines over, on any part of the accelerators.

    Measured entries count if they fit the pool; a law gives all layouts of the nodes. Raises Infeasible when there is
    none.
    """
    pool = cluster.pools[pool_name]
    longest = job.rollout.longest_tokens
    budgets = [tokens for tokens in job.search.micro_batch_tokens if tokens >= longest]
    fits = [train_cost(t) for t in profile.train if t.micro_batch_tokens in budgets]
    fits = [t for t in fits if t.layout.accelerators <= pool.accelerators_total]
    if not fits and profile.train_law is not None:
        for nodes in node_counts(pool, fewer_nodes):
            ranks, memory_bytes = nodes * pool.accelerators.per_node, pool.accelerators.memory_bytes
            costs = train_costs(profile, ranks, budgets, memory_bytes=memory_bytes)
            fits += _unbeaten(costs, any(job.search.hand_over))
    if not fits:
        raise Infeasible(f"no update of the profile fits: {no_update(job, profile, pool, budgets)}")

    def size(cost: TrainCost) -> tuple[int, ...]:
        u = cost.layout
        return u.accelerators, u.dp, u.tp, u.pp, u.cp, u.ep, u.micro_batch_tokens

    return tuple(sorted(fits, key=size))


def _unbeaten(costs: Sequence[TrainCost], hand_over: bool) -> list[TrainCost]:
    """Of updates on equally many accelerators those that no other, at least as simple, beats whatever is trained: ties
    within the error go to the simplest (ties.py), so that simpler ones stay.

    `hand_over`: also while only some engines were freed. These train by whole replicas (streaming.Window), so a faster
    update whose replicas are larger may train nothing there. It trains on at least as many of any number of
    accelerators if its replicas divide the other's.
    """

    def terms(t: TrainCost) -> tuple[float, ...]:
        return t.step_s, t.per_token_s, t.per_token_squared_s, t.per_sample_s

    def beats(one: TrainCost, other: TrainCost) -> bool:
        if _complexity(one.layout) > _complexity(other.layout):
            return False
        if hand_over and other.layout.replica % one.layout.replica:
            return False
        return all(a <= b for a, b in zip(terms(one), terms(other), strict=True)) and terms(one) < terms(other)

    return [t for t in costs if not any(beats(other, t) for other in costs)]


def _complexity(layout: UpdateLayout) -> int:
    """0: what the executor runs; 1: data parallel, recomputing or offloading; then with tensor or expert parallelism,
    with context parallelism, with a pipeline."""
    if layout.pp > 1:
        return 4
    if layout.cp > 1:
        return 3
    if max(layout.tp, layout.ep) > 1:
        return 2
    return int(any(update_faults(layout)))
