"""Whether a profile is of the job and of the machines that it is to price: what `solve` refuses and `check` reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...plans.check.plan_fit import pool_faults
from ...plans.check.solved_rules import days_since
from ...plans.facts.device_shares import kv_value_bytes
from ...plans.facts.model_names import architecture_of
from ...plans.files.row_files import rows_digest
from ...plans.phrases.numbers import bytes_text
from ...plans.schema.cluster import Cluster, Pool
from ...plans.schema.job import Job, JobPaths
from ...plans.yaml.yaml_io import sha256_file
from ..hardware import gpu_of
from ..profile_schema import Machine, Profile
from . import SAME_SIZE, nearest_shipped, shipped_model
from .scaled_profile import policy_shape, scaling_fault

# GPUs report a little less memory than their data sheets state.
LEAST_MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a profile does not fit.

    Attributes:
        rule: its name in the catalogue of `rlplan check`.
        message: what is wrong.
        remedy: what to do.
        forcible: whether `rlplan solve --force` uses the profile all the same.
    """

    rule: str
    message: str
    remedy: str
    forcible: bool = True


def unfit(profile: Profile, job: Job, paths: JobPaths | None, pools: Sequence[Pool]) -> Iterator[Unfit]:
    """Why `profile` is not of `job`, or of none of `pools`.

    `paths`: the job's files, which a measured profile's digest covers; None where they are not at hand, and then it is
    not compared. Raises InputError when one of them cannot be read.
    """
    measured = profile.provenance == "measured"
    if measured and profile.job != job.name:
        text = f"is a profile of job {profile.job!r}, not {job.name!r}"
        yield Unfit("profile-of-other-job", text, "run rlplan profile", forcible=False)
    unlike = [differences(profile, machine_of(pool)) for pool in pools]
    if unlike and all(unlike):
        text = f"is of another machine ({'; '.join(unlike[0])})"
        yield Unfit("profile-of-other-machine", text, "run rlplan profile on this cluster")
    folder = None if paths is None else paths.model_folder
    if not measured:
        other = other_model(profile, job, folder)
        yield from [] if other is None else [other]
    elif paths is not None and paths.data is not None and subject_digest(job, paths) != profile.measured:
        yield _measured_on(profile, job, folder) or Unfit(
            "profile-of-earlier-job",
            "was measured before the job's model, data, reward or rollout section (or the data file, or the model's "
            "config.json) changed",
            "run rlplan profile",
        )


def other_model(profile: Profile, job: Job, folder: Path | None) -> Unfit | None:
    """Why a derived profile cannot be scaled to the job's model, which is at `folder` if it is on this machine; None if
    it can, or where that model's shape is not known and its name gives no other size."""
    law = profile.train_law
    known = policy_shape(job.model.path, folder) or architecture_of(job.model.path)
    if law is None or known is None:
        return None
    fault = scaling_fault(law, law.shape, known, job.model.path)
    if fault is None:
        return None
    nearest = nearest_shipped(known, law.accelerator)
    remedy = "measure the job's model with rlplan profile"
    if nearest is not None and nearest != law.model:
        remedy = f"take that of {nearest}: rlplan profile JOB --shipped {nearest}"
    return Unfit("profile-of-other-model", fault, remedy)


def _measured_on(profile: Profile, job: Job, folder: Path | None) -> Unfit | None:
    """What is wrong with a profile that was measured on a model of another size, or with other KV, than the job's: no
    law of that machine scales its figures. None where it was not, or where the job's model is not known."""
    shape = policy_shape(job.model.path, folder)
    if shape is None:
        return None
    kv = [entry.kv_bytes_per_token for entry in profile.rollout[:1]]
    own = 2 * kv_value_bytes(job) * shape.layers * shape.kv_heads * shape.head_dim
    same_kv = shape.latent_kv or own in kv
    if same_kv and abs(shape.parameters / profile.model_parameters - 1) <= SAME_SIZE:
        return None
    named = shipped_model(shape)
    shipped = f", or plan with one that ships: rlplan profile --shipped {named}" if named else ""
    return Unfit(
        "profile-of-other-model",
        f"was measured on a model of {profile.model_parameters / 1e9:.3g}B parameters with {kv[0] / 1e3:.3g} kB of KV "
        f"a token, the job's {job.model.path} has {shape.parameters / 1e9:.3g}B and {own / 1e3:.3g} kB",
        f"run rlplan profile{shipped}",
        forcible=False,
    )


def age_days(profile: Profile, now: datetime) -> float | None:
    """Days since the profile was measured, negative of a date that is to come; None where it does not say."""
    return None if profile.volatile is None else days_since(profile.volatile.measured_at, now)


# Reported memory differs a little between boots of one machine.
MEMORY_TOLERANCE = 0.1


def machine_of(pool: Pool) -> Machine:
    """A node of the pool, as cluster.yaml describes it."""
    return Machine(
        accelerator=pool.accelerators.name,
        kind=pool.accelerators.kind,
        accelerators=pool.accelerators.per_node,
        cores=pool.cores,
        host_memory_bytes=pool.host_memory_bytes,
    )


def differences(profile: Profile, machine: Machine) -> list[str]:
    """Texts on how `machine` differs from the profiled machine; empty if the profile may be used on it.

    A profile that was not measured is of an accelerator, on whatever host.
    """
    then = profile.machine
    if profile.provenance != "measured":
        profiled_gpu, given_gpu = gpu_of(then.accelerator), gpu_of(machine.accelerator)
        if then.kind == machine.kind and (profiled_gpu is not None and profiled_gpu == given_gpu):
            return []
        if then.kind != machine.kind:
            return [f"accelerators of kind {then.kind} there, of kind {machine.kind} here"]
        return [f"accelerator {then.accelerator!r} there, {machine.accelerator!r} here"]
    texts = [
        f"{name} {getattr(then, name)!r} there, {getattr(machine, name)!r} here"
        for name in ("kind", "accelerator", "accelerators", "cores")
        if getattr(then, name) != getattr(machine, name)
    ]
    if abs(then.host_memory_bytes / machine.host_memory_bytes - 1) > MEMORY_TOLERANCE:
        texts.append(f"host_memory_bytes {then.host_memory_bytes} there, {machine.host_memory_bytes} here")
    return texts


def other_accelerator(profile: Profile, pool: Pool, name: str) -> str | None:
    """Why a profile does not price trainers on the pool called `name`, and what to do; None if it does: its
    accelerators are the profile's."""
    profiled, given = profile.machine.accelerator, pool.accelerators.name
    sheets = gpu_of(profiled), gpu_of(given)
    if profile.machine.kind == pool.accelerators.kind and (profiled == given or (sheets[0] and sheets[0] == sheets[1])):
        return None
    return (
        f"pool '{name}' has accelerators {given!r}, and the profile, which prices engines and trainers alike, is of "
        f"{profiled!r}; name a pool of these, or plan both phases in a workload, each with seconds of its own"
    )


SECTIONS = ("model", "data", "reward", "rollout")


def subject_digest(job: Job, paths: JobPaths) -> str:
    """SHA-256 over the job's sections model, data, reward, rollout and engine, the data file and config.json.

    Weights are not read: they may be large, and a profile of one checkpoint of a model serves the next one too. Nor are
    the adaptive timeout, the memory, the sandbox and the environment of a reward: it is measured under the longest
    deadline, and where these are enough.
    """
    named = [*SECTIONS, *(["engine"] if job.engine is not None else [])]
    sections = {name: getattr(job, name).model_dump(mode="json") for name in named}
    rewards = sections["reward"] if isinstance(sections["reward"], list) else [sections["reward"]]
    for part in rewards:
        for key in ("adaptive_timeout", "memory_bytes", "sandbox", "environment"):
            part.pop(key, None)
    sections["data"].pop("held_out", None)  # lengths of both parts are alike
    sections["data"].pop("prompts", None)  # nothing can be measured without the file, whose bytes are in the digest
    digests = [rows_digest(paths.data)] if paths.data is not None else []
    if paths.model_folder is not None and (paths.model_folder / "config.json").is_file():
        digests.append(sha256_file(paths.model_folder / "config.json"))
    text = json.dumps([sections, digests], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def less_memory(profile: Profile, pool: Pool, name: str) -> str | None:
    """Why the profile's KV space and updates do not hold on the pool's accelerators; None if they do."""
    sheet = gpu_of(profile.machine.accelerator) if profile.machine.kind == "cuda" else None
    if sheet is None or pool.accelerators.memory_bytes >= LEAST_MEMORY_SHARE * sheet.memory_bytes:
        return None
    return (
        f"the profile is of accelerators with {bytes_text(sheet.memory_bytes)}, those of pool '{name}' have "
        f"{bytes_text(pool.accelerators.memory_bytes)}; its KV space and updates do not hold there"
    )


def placement_unfit(cluster: Cluster, train: str, profile: Profile | None) -> Unfit | None:
    """Why trainers cannot have pool `train` to themselves: the cluster lacks it, engines have no other of its kind, or
    the profile (None: unknown) does not price it. None if they may have it."""
    unknown = next(pool_faults(cluster, train, ""), None)
    if unknown is not None:
        return Unfit(unknown.rule, unknown.message, unknown.remedy)
    others = [pool for name, pool in cluster.pools.items() if name != train]
    kind = cluster.pools[train].accelerators.kind
    if not others:
        message = f"is {train}, the only pool of cluster '{cluster.name}', and engines need another"
        return Unfit("same-pool", message, "add a pool, or remove placement: they then take turns")
    if not any(pool.accelerators.kind == kind for pool in others):
        message = f"pool '{train}' is of kind {kind}, and no other pool of cluster '{cluster.name}' is"
        return Unfit("pools-of-two-kinds", message, "name one of two pools of the same kind")
    unlike = None if profile is None else other_accelerator(profile, cluster.pools[train], train)
    if unlike is None:
        return None
    message, _, remedy = unlike.partition("; ")
    return Unfit("profile-of-other-machine", message, remedy)
