"""A plan of groups for another framework: where each job's phases are. Turns are taken by what schedules the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...plans.facts.trainer_setup import Framework
from ...plans.phrases.numbers import seconds
from ...plans.schema.cluster import Cluster
from ...plans.schema.groups_plan import GroupMember, PlannedGroup, load_groups_plan
from ...plans.schema.workload import Workload, WorkloadJob, load_workload
from .draft import FrameworkExport, SettingsDraft
from .own_files import flag_words, override_words, shell_line, yaml_text

_KEYS: Mapping[str, Mapping[str, str]] = {
    "slime": {
        "model": "--hf-checkpoint", "nodes": "--actor-num-nodes", "per_node": "--actor-num-gpus-per-node",
        "tp": "--tensor-model-parallel-size", "gpus": "--rollout-num-gpus",
        "engine_tp": "--rollout-num-gpus-per-engine",
    },
    "skyrl": {
        "model": "trainer.policy.model.path", "nodes": "trainer.placement.policy_num_nodes",
        "per_node": "trainer.placement.policy_num_gpus_per_node", "apart": "trainer.placement.colocate_all",
        "engines": "generator.inference_engine.num_engines",
        "engine_tp": "generator.inference_engine.tensor_parallel_size",
    },
    "openrlhf": {
        "model": "--actor.model_name_or_path", "nodes": "--actor.num_nodes", "per_node": "--actor.num_gpus_per_node",
        "engines": "--vllm.num_engines", "engine_tp": "--vllm.tensor_parallel_size", "tp": "--ds.tensor_parallel_size",
    },
    "verl": {
        "model": "actor_rollout_ref.model.path", "nodes": "trainer.nnodes", "per_node": "trainer.n_gpus_per_node",
        "engine_tp": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    },
    "trl": {"model": "model_name_or_path"},
}  # fmt: skip
_PROGRAMS = {
    "slime": ["python3", '"${SLIME_DIR:?the checkout of slime}/train.py"'],
    "vime": ["python3", '"${VIME_DIR:?the checkout of vime}/train.py"'],
    "verl": ["python3", "-m", "verl.trainer.main_ppo"],
    "skyrl": ["python3", "-m", "skyrl.train.entrypoints.main_base"],
    "openrlhf": ["python3", "-m", "openrlhf.cli.train_ppo_ray"],
}


def export_groups(path: str | Path, framework: Framework) -> dict[str, FrameworkExport]:
    """By job of the plan: its placement in the framework's keys. Raises InputError."""
    plan = load_groups_plan(path)
    workload, cluster = load_workload(Path(path).parent / plan.inputs.workload.path)
    return {
        name: _job(framework, name, group, member, workload, cluster)
        for group in plan.groups.values()
        for name, member in group.jobs.items()
    }


def _job(
    framework: Framework, name: str, group: PlannedGroup, member: GroupMember, workload: Workload, cluster: Cluster
) -> FrameworkExport:
    job = workload.jobs[name]
    draft = SettingsDraft(framework)
    keys = _KEYS["slime" if framework == "vime" else framework]
    train_pool, rollout_pool = cluster.pools[member.train.pool], cluster.pools[member.rollout.pool]
    per_node = train_pool.accelerators.per_node
    train_gpus = _gpus(group, member.train.units, cluster)
    gpus, engine_tp = _gpus(group, member.rollout.units, cluster), _tp(job, "rollout")
    values = {
        "model": job.model, "nodes": max(1, train_gpus // per_node), "per_node": min(per_node, train_gpus),
        "tp": _tp(job, "train"), "gpus": gpus, "engines": gpus // engine_tp, "engine_tp": engine_tp, "apart": False,
    }  # fmt: skip
    for what, key in keys.items():
        if values[what] is not None:
            decision = {"model": "model", "apart": "pools"}.get(
                what, "rollout" if what in ("gpus", "engines", "engine_tp") else "train"
            )
            draft.map(f"jobs.{name}.{decision}.{what}", key, values[what])
    kinds = f"{gpus} {rollout_pool.accelerators.name} to decode, {train_gpus} {train_pool.accelerators.name} to train"
    if framework in ("verl", "trl"):
        draft.note(f"jobs.{name}.pools", "not expressible", f"{kinds}: its synchronous trainer decodes where it trains")
    slowdown = member.slowdown
    draft.note(f"jobs.{name}.turns", "not expressible",
               f"phases take turns with {len(group.jobs) - 1} other jobs, a step in {seconds(member.pace_s)}; alone "
               f"it takes {seconds(slowdown.alone_s)} on nodes of its own")  # fmt: skip
    draft.note(
        f"jobs.{name}.step", "not expressible", "the workload says seconds of phases, not prompts and samples: add them"
    )
    if framework == "trl":
        files = {"grpo.yaml": yaml_text(draft.settings)}
        return draft.done(files, "trl grpo --config grpo.yaml")
    words = flag_words(draft.settings) if keys["model"].startswith("--") else override_words(draft.settings, {})
    files = {"run.sh": "set -e\n" + shell_line(_PROGRAMS[framework], [*words, '"$@"'])}
    return draft.done(files, "bash run.sh")


def _tp(job: WorkloadJob, phase: str) -> int:
    return 1 if job.phases is None else int(getattr(job.phases, phase).tp)


def _gpus(group: PlannedGroup, units: tuple[int, ...], cluster: Cluster) -> int:
    """Accelerators of units: slots of the group's nodes, in their order."""
    sizes = [
        cluster.pools[node.pool].accelerators.per_node // node.slots for node in group.nodes for _ in range(node.slots)
    ]
    return sum(sizes[unit] for unit in units)
