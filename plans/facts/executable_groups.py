"""What of a plan of groups `rlplan execute` can run, as data: read by `check` and `execute` alike.

What a job's own plan must be for that: executor/groups/prepare_group.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..schema.groups_plan import GroupsPlan
from ..yaml.yaml_doc import Loc


def unsupported_in_groups(plan: GroupsPlan) -> Iterator[tuple[Loc, str, str]]:
    """Yield (location in the plan, what is wrong, remedy) for each decision that the executor cannot run."""
    for key, group in plan.groups.items():
        for name, member in group.jobs.items():
            job: Loc = ("groups", key, "jobs", name)
            if name not in plan.inputs.sources:
                yield (
                    job,
                    "has no plan of its own to execute",
                    "write its source, {plan: ...}, into the workload, and solve again",
                )
            for phase, pinned in (("rollout", member.rollout), ("train", member.train)):
                where: Loc = (*job, phase)
                if phase == "train" and pinned.resume_s is not None:
                    yield (
                        (*where, "resume_s"),
                        "the executor pauses rollouts, and no training",
                        "remove resume_s of the phase train from the workload, and solve again",
                    )
                if pinned.way and member.point is None:
                    yield (
                        (*where, "way"),
                        "the executor runs a job as its own plan has it, and this is another way",
                        "solve the job for these nodes, make them its reference, and solve again",
                    )
                nodes = {group.node_of_unit(unit) for unit in pinned.units}
                if len(pinned.units) != sum(group.nodes[node].slots for node in nodes):
                    yield (
                        (*where, "units"),
                        "the executor gives whole nodes, and this is a part of one",
                        "write slots: 1, and solve again",
                    )
            if member.tail_units is not None:
                kept = sorted(member.rollout.units)[: member.tail_units]
                nodes = {group.node_of_unit(unit) for unit in kept}
                if len(kept) != sum(group.nodes[node].slots for node in nodes):
                    yield (
                        (*job, "tail_units"),
                        "the executor moves tails to whole nodes, and this is a part of one",
                        "write slots: 1, or set rules.tail_keep to 0, and solve again",
                    )
                elif member.tail_finished is None:
                    yield (
                        (*job, "tail_units"),
                        "the plan is older than tail_finished, and does not say when the tail begins",
                        "solve again",
                    )
            if set(member.rollout.units) & set(member.train.units):
                yield (
                    (*job, "train", "units"),
                    "the executor has rollout and training on nodes of their own",
                    "use two pools, and solve again",
                )
