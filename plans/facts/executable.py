"""What `rlplan execute` can run, as data: the layouts of its trainers, and where its judge may be.

The planner prices more layouts than the executor has, so that plans can be made for other frameworks, too.
This is the one place that says which of them the executor runs. `solve` considers nothing else unless it is told `--for
any`; `check` says whether a plan runs here, and `execute` refuses the others by the same function (`unsupported`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..phrases.sentences import listed
from ..schema.groups_plan import GroupsPlan, PlannedGroup
from ..schema.levers import RewardJudge, UpdateLayout, copies_fault
from ..schema.plan import Plan
from ..yaml.yaml_doc import Loc
from .model_shape import ModelShape

UPDATE_VALUES: Mapping[str, tuple[Any, ...]] = {
    "pp": (1,),
    "cp": (1,),
    "ep": (1,),
    "recompute": ("none", "full"),
    "offload": (False, True),
}
"""By key of a plan's `train` section: the values that the executor's trainers run. A key that is not here may have any
value that divides the model, or the ranks: dp, tp, sp, state_copies, micro_batch_tokens."""

SAME_IN_BOTH_KINDS = ("dp", "tp", "sp", "state_copies", "reference")
"""Keys of `train` with one value for short and for long rounds, since trainers are started once. The others of the keys
that the executor has (recompute, offload, micro_batch_tokens) may differ."""

OTHERS_ONLY = "other frameworks only"
"""What is said of a plan that the executor cannot run, before the reasons."""

ALIVE_TOKENS = 256
"""A request of an engine tells at least every so many tokens: 20 s at 80 ms a step."""
PROGRESS_S = 120.0
"""Seconds in which an engine that has samples must tell tokens of one of them, unless `--stall-timeout` is longer."""

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""`model_type` (config.json) of the models that the executor's trainers train."""

_WHY_NOT = {
    "pp": "and the executor's trainers have no pipeline",
    "cp": "and the executor's trainers share sequences by sp",
    "ep": "and transformers (5.19) shares experts out over tensor-parallel ranks only, where tp splits them already",
}
_NO_EXPERTS = "and the model has no experts"


def family_fault(model: ModelShape) -> str | None:
    """What is wrong with a model of a family that the executor's trainers do not train, or with the adapters that a job
    wants of it; None of one that they do, and where the family is unknown."""
    if model.lora is not None and model.experts and not model.lora.of_all:
        of_experts = [name for name in model.lora.target_modules if name in ("gate_proj", "up_proj", "down_proj")]
        if of_experts:
            return (
                f"model.lora.target_modules names {of_experts[0]}, and the model's experts are no modules of their own "
                "(transformers 5.19), so that they have no adapters: write all-linear, or names of attention"
            )
    if model.family is None or model.family in FAMILIES:
        return None
    return f"the model is of the family {model.family}, and the executor trains only {listed(FAMILIES)}"


def update_faults(train: UpdateLayout, model: ModelShape | None) -> Iterator[tuple[str, str]]:
    """Yield (key of the `train` section, what is wrong) for each setting that the executor's trainers cannot run.

    `model`: the model's shape; None: unknown, and then what it must divide is not checked.
    """
    for key, values in UPDATE_VALUES.items():
        value = getattr(train, key)
        if value not in values:
            known = listed(map(_text, values), "or")
            why = _WHY_NOT.get(key, f"and the executor has only {known}")
            dense = key == "ep" and model is not None and not model.experts
            yield key, f"is {_text(value)}, {_NO_EXPERTS if dense else why}"
    if model is not None and model.lora is not None and train.tp > 1:
        yield "tp", f"is {train.tp}, and the job trains adapters (model.lora), which each rank has whole: write tp 1"
    if model is not None:
        yield from _model_faults(train, model)


def _model_faults(train: UpdateLayout, model: ModelShape) -> Iterator[tuple[str, str]]:
    """Yield the faults of sizes over which the model cannot be shared out evenly: a copy holds no part of it twice."""
    tp, ranks, shards = train.tp, train.tp * train.sp, train.shard_ranks
    of_ranks = "dp x sp / state_copies" if train.state_copies > 1 else "dp x sp"
    heads = f"{model.heads} attention and {model.kv_heads} key-value heads"
    if tp > 1 and model.experts:
        yield (
            "tp",
            f"is {tp}, and the model is a mixture of experts: torch's distributed checkpoints cannot hold the experts' "
            "matrices as transformers (5.19) cuts them over tensor-parallel ranks",
        )
    elif model.heads % tp or model.kv_heads % tp:
        yield "tp", f"is {tp}, which does not divide {heads}"
    elif model.heads % ranks or model.kv_heads % ranks:
        yield "sp", f"is {train.sp}, and tp x sp {ranks} does not divide {heads}"
    if not model.experts and model.vocab is not None and model.vocab % tp:
        yield "tp", f"is {tp}, which does not divide a vocabulary of {model.vocab}"
    if not model.experts and model.intermediate is not None and model.intermediate % tp:
        yield "tp", f"is {tp}, which does not divide an intermediate width of {model.intermediate}"
    if model.experts and -(-model.experts // shards) * (shards - 1) >= model.experts:
        yield (
            "dp",
            f"is {train.dp}, and {of_ranks} {shards} leaves ranks without any of {model.experts} experts, which "
            "transformers (5.19) cannot load",
        )


def judge_fault(judge: RewardJudge, kind: str, apart: bool) -> str | None:
    """Why the executor cannot run a judge on accelerators of this kind; None if it can.

    `apart`: trainers have a pool of their own.
    """
    if kind == "cpu" or (judge.place == "own" and apart):
        return None
    return (
        "the executor books no memory of a GPU for a judge beside engines or trainers; on GPUs it runs a judge of its "
        "own (place: own) where trainers have a pool to themselves (placement.train_pool)"
    )


def unsupported(
    plan: Plan, model: ModelShape | None, accelerators: str | None = None
) -> Iterator[tuple[Loc, str, str]]:
    """Yield (location in the plan, what is wrong, remedy) for each decision that the executor cannot run.

    `model`: the shape of the job's model (`shape_of_job`); `accelerators`: the kind of those that the plan's engines
    run on (`cpu` or `cuda`). None: unknown and not checked.
    """
    planned = plan.job
    judge = planned.reward.judge
    if judge is not None and accelerators is not None:
        fault = judge_fault(judge, accelerators, planned.placement is not None)
        if fault is not None:
            yield ("job", "reward", "judge"), fault, "solve again, with a pool for trainers (placement.train_pool)"
    short, long = planned.rounds.short, planned.rounds.long
    if model is not None and (fault := family_fault(model)) is not None:
        yield ("inputs", "job"), fault, "run the plan with another framework, or train a model of one of these"
    for name, kind in planned.rounds.kinds:
        for key, text in update_faults(kind.train, model):
            yield ("job", "rounds", name, "train", key), text, _remedy(kind.train, key, model, plan.solver.for_any)
    if planned.reward.synchronous:
        why = "the executor scores beside the rollout, which is never slower"
        yield ("job", "reward", "synchronous"), why, "write false"
    if long is None:
        return
    if long.rollout.pool != short.rollout.pool:
        why = f"is {long.rollout.pool}, but all engines and trainers of a job run in one pool"
        remedy = f"write {short.rollout.pool} as in rounds.short.rollout"
        yield ("job", "rounds", "long", "rollout", "pool"), why, remedy
    for key in SAME_IN_BOTH_KINDS:
        here, there = getattr(long.train, key), getattr(short.train, key)
        if here != there:
            why = f"is {here}, but trainers are started once, for both kinds of round"
            yield ("job", "rounds", "long", "train", key), why, f"write {there} as in rounds.short.train"


def not_executable(plan: Plan, model: ModelShape | None) -> list[str]:
    """Return why the executor cannot run the plan, each reason once with all its keys; empty if it can. `model`: as of
    `unsupported`."""
    return merged((".".join(map(str, loc)), fault) for loc, fault, _ in unsupported(plan, model))


def merged(faults: Iterable[tuple[str, str]]) -> list[str]:
    """Return each fault of (dotted key, fault) once, as text with all its keys."""
    keys_of: dict[str, list[str]] = {}
    for key, fault in faults:
        keys_of.setdefault(fault, []).append(key)
    return [
        f"{keys[0]}{' ' if fault.startswith('is ') else ': '}{fault}"
        + (f" (likewise {', '.join(keys[1:])})" if keys[1:] else "")
        for fault, keys in keys_of.items()
    ]


def is_for_any(plan: Plan, model: ModelShape | None) -> bool:
    """Return whether a plan is solved again among all candidates, and not only among those that the executor runs.

    It is if it was solved so, or if it cannot be run here: then it was solved by an earlier version, or edited.
    `model`: as of `unsupported`.
    """
    return plan.solver.for_any or any(True for _ in unsupported(plan, model))


def _remedy(train: UpdateLayout, key: str, model: ModelShape | None, for_any: bool) -> str:
    """What to do about a layout that cannot run. Of a plan that was solved so there is no other value to write, since
    its memory may not do; a plan that was edited by hand once had one."""
    if for_any:
        return "solve again without --for any, or run the plan with another framework"

    def runs(value: object) -> bool:
        other = train.model_copy(update={key: value})
        if copies_fault(other.state_copies, other.dp * other.cp * other.sp):
            return False
        return key not in {wrong for wrong, _ in update_faults(other, model)}

    values: Iterable[object] = UPDATE_VALUES.get(key, ())
    if not values and model is not None:
        most = train.dp if key == "dp" else model.heads
        values = [size for size in range(1, most + 1) if runs(size)]
        values = values[-1:] if key == "dp" else values  # the most replicas that run, of many
    return f"write {listed(map(_text, values), 'or')}, or solve again" if values else "solve again"


def _text(value: object) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unsupported_in_groups(plan: GroupsPlan) -> Iterator[tuple[Loc, str, str]]:
    """Yield (location in the plan, what is wrong, remedy) for each decision that the executor cannot run."""
    for group_id, name, member in plan.members:
        group, job = plan.groups[group_id], ("groups", group_id, "jobs", name)
        if name not in plan.inputs.sources:
            remedy = "write its source, {plan: ...}, into the workload, and solve again"
            yield job, "has no plan of its own to execute", remedy
        for phase, pinned in (("rollout", member.rollout), ("train", member.train)):
            if phase == "train" and pinned.resume_s is not None:
                remedy = "remove resume_s of the phase train from the workload, and solve again"
                yield (*job, phase, "resume_s"), "the executor pauses rollouts, and no training", remedy
            if pinned.way and member.point is None:
                why = "the executor runs a job as its own plan has it, and this is another way"
                remedy = "solve the job for these nodes, make them its reference, and solve again"
                yield (*job, phase, "way"), why, remedy
            if not _are_whole_nodes(group, pinned.units):
                why = "the executor gives whole nodes, and this is a part of one"
                yield (*job, phase, "units"), why, "write slots: 1, and solve again"
        if member.tail_units is not None:
            if not _are_whole_nodes(group, sorted(member.rollout.units)[: member.tail_units]):
                why = "the executor moves tails to whole nodes, and this is a part of one"
                yield (*job, "tail_units"), why, "write slots: 1, or set rules.tail_keep to 0, and solve again"
            elif member.tail_finished is None:
                why = "the plan is older than tail_finished, and does not say when the tail begins"
                yield (*job, "tail_units"), why, "solve again"
        if set(member.rollout.units) & set(member.train.units):
            why = "the executor has rollout and training on nodes of their own"
            yield (*job, "train", "units"), why, "use two pools, and solve again"


def _are_whole_nodes(group: PlannedGroup, units: Sequence[int]) -> bool:
    nodes = {group.node_of_unit(unit) for unit in units}
    return len(units) == sum(group.nodes[node].slots for node in nodes)
