"""Our own job.yaml and cluster.yaml into a TrainerSetup: the first layout that the job's `search` names.

The executor keeps float32 weights, gradients and moments, sharded over the replicas; engine and trainer share the GPUs
and take turns on them, unless the job has a pool to train on.
"""

from __future__ import annotations

from pathlib import Path

from ...plans.facts.device_shares import ENGINE_SHARE
from ...plans.facts.trainer_setup import LeftAside, TrainerSetup
from ...plans.schema.cluster import Cluster, load_cluster
from ...plans.schema.job import Job, load_job
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import document_kind

_KEYS = {
    "model": "model.path", "prompts": "rollout.prompts_per_step", "samples": "rollout.samples_per_prompt",
    "max_prompt_tokens": "rollout.max_prompt_tokens", "max_response_tokens": "rollout.max_response_tokens",
    "rollout_tp": "search.tp", "micro_batch_tokens": "search.micro_batch_tokens", "nodes": "pools.*.nodes",
    "gpus_per_node": "pools.*.accelerators.per_node", "gpu": "pools.*.accelerators.name",
    "host_bytes": "pools.*.host_memory_bytes", "colocated": "placement.train_pool",
    "dynamic_sampling": "algorithm.dynamic_sampling",
}  # fmt: skip


def own_setup(path: Path) -> TrainerSetup:
    """The setup of a job.yaml beside its cluster.yaml, or of a cluster.yaml beside its job.yaml. Raises InputError."""
    kind = document_kind(path)
    other = path.with_name("cluster.yaml" if kind == "rlplan_job" else "job.yaml")
    if not other.is_file():
        raise InputError(
            f"needs {other.name} beside it, which is not there; write one (rlplan init), or name a plan",
            str(path),
        )
    job_path, cluster_path = (path, other) if kind == "rlplan_job" else (other, path)
    return setup_of_documents(load_job(job_path), load_cluster(cluster_path), str(path))


def setup_of_documents(job: Job, cluster: Cluster, source: str = "") -> TrainerSetup:
    """The setup of a job on a cluster: on the largest pool, or on that and the pool that it trains on."""
    train_name = None if job.placement is None else job.placement.train_pool
    rest = [name for name in cluster.pools if name != train_name] or list(cluster.pools)
    name = max(rest, key=lambda each: cluster.pools[each].accelerators_total)
    pool = cluster.pools[name]
    train = pool if train_name is None or train_name not in cluster.pools else cluster.pools[train_name]
    colocated = train is pool
    spec, wide = job.rollout, job.model.dtype == "float32"
    aside = [
        LeftAside(f"search.{key}", str(list(values)), f"{values[0]} is taken; rlplan solve weighs them all")
        for key, values in (("tp", job.search.tp), ("micro_batch_tokens", job.search.micro_batch_tokens))
        if len(values) > 1
    ]
    return TrainerSetup(
        framework="rlplan", model=job.model.path, nodes=pool.nodes + (0 if colocated else train.nodes),
        gpus_per_node=pool.accelerators.per_node, gpu=pool.accelerators.name, source=source,
        host_bytes=float(pool.host_memory_bytes), colocated=colocated, train_gpus=train.accelerators_total,
        rollout_gpus=pool.accelerators_total, backend="fsdp", zero=3,
        micro_batch_tokens=job.search.micro_batch_tokens[0],
        recompute="none" if wide and pool.accelerators.kind == "cpu" else "full", weight_bytes=4.0, gradient_bytes=4.0,
        optimizer_bytes=8.0, chunked_logits=True, prompts=spec.prompts_per_step, samples=spec.samples_per_prompt,
        dynamic_sampling=job.algorithm.dynamic_sampling, max_prompt_tokens=spec.max_prompt_tokens,
        max_response_tokens=spec.max_response_tokens, engine="vllm", rollout_tp=job.search.tp[0],
        weights_at="between" if colocated else "device", optimizer_at="between" if colocated else "device",
        memory_share=ENGINE_SHARE, engine_sleeps=colocated, engine_keeps_weights_on_host=False, keys=_KEYS,
        defaulted=("recompute", "memory_share"), left_aside=tuple(aside),
    )  # fmt: skip
