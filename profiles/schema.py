"""The profile: what each phase costs on one machine, as a few coefficients with their spread and their error.

A decode step is close to a line in the running sequences and the KV tokens that they hold, so a profile is small enough
to review. Rollout costs belong to a *layout* (TP size and number of engines): on a CPU, engines share cores, memory
bandwidth and the driver, so two engines are not twice one engine; on GPUs the layouts of one TP agree.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Machine(_Model):
    """What was measured on. `plan` and `profile` refuse to be used on another machine unless forced."""

    accelerator: str = Field(description="Name of the accelerator, as the platform reports it")
    kind: Literal["cpu", "cuda"] = Field(description="Kind of accelerator")
    accelerators: int = Field(ge=1, description="Accelerators per node")
    cores: int = Field(ge=1, description="Host cores per node")
    host_memory_bytes: int = Field(ge=1, description="Host memory per node, bytes")


class Spread(_Model):
    """A measured duration: robust centre and spread over repeats."""

    p50: float = Field(ge=0, description="Median, seconds")
    p95: float = Field(ge=0, description="95th percentile, seconds")
    repeats: int = Field(ge=1, description="How many times it was measured")


class DecodePoint(_Model):
    """One measured point of the decode grid."""

    sequences: int = Field(ge=1, description="Sequences running on the engine")
    kv_tokens: float = Field(ge=0, description="KV tokens they hold together, mean over the measurement")
    step_s: float = Field(gt=0, description="Seconds per decode step, median of the repeats")
    spread: float = Field(ge=0, description="Median absolute deviation over the median")
    outlier: bool = Field(default=False, description="Left out of the fit: its residual is beyond 4 robust sigmas")


class Rollout(_Model):
    """What generation costs in one layout. All engines of the layout were busy while it was measured."""

    tp: int = Field(ge=1, description="Tensor-parallel size of each engine")
    engines: int = Field(ge=1, description="Engines that run at once")
    step_s: float = Field(gt=0, description="Seconds of a decode step with nothing in it (a)")
    step_s_per_sequence: float = Field(ge=0, description="Seconds more per running sequence (b)")
    step_s_per_kv_token: float = Field(ge=0, description="Seconds more per KV token held (c)")
    prefill_s: float = Field(ge=0, description="Seconds to admit a request, whatever its prompt's length")
    prefill_s_per_token: float = Field(ge=0, description="Seconds more per prompt token")
    kv_capacity_tokens: int = Field(ge=1, description="KV tokens that one engine holds at most")
    kv_bytes_per_token: int = Field(ge=1, description="Bytes of KV per token over the whole engine")
    start: Spread = Field(description="Engine start, cold")
    sync: Spread = Field(description="Weight sync from the trainer to all engines of the layout, end to end")
    error: float = Field(ge=0, description="Mean relative error on grid points left out of the fit, one at a time")
    points: tuple[DecodePoint, ...] = Field(description="The measured grid")


class Train(_Model):
    """What an update costs for one micro-batch budget."""

    dp: int = Field(ge=1, description="Data-parallel ranks")
    micro_batch_tokens: int = Field(ge=1, description="Token budget of a packed micro-batch")
    step_s: float = Field(ge=0, description="Seconds of a step that do not depend on its tokens (optimizer, export)")
    step_s_per_token: float = Field(gt=0, description="Seconds more per trained token, prompt included")
    step_s_per_token_squared: float = Field(
        ge=0, description="Seconds more per sum over samples of (tokens squared): attention"
    )
    error: float = Field(ge=0, description="Mean relative error on batches left out of the fit")


class Reward(_Model):
    """What scoring one sample costs, measured through the reward workers."""

    workers: int = Field(ge=1, description="Reward workers that were running")
    latency: Spread = Field(description="From submission to result for one sample alone")
    per_sample_s: float = Field(ge=0, description="Seconds of one worker per sample when many are queued")


class Lengths(_Model):
    """The length trace beside the profile."""

    path: str = Field(description="JSONL file beside the profile: prompt, epoch, sample, tokens, truncated, reward")
    sha256: str = Field(description="Digest of that file")
    prompts: int = Field(ge=1, description="Different prompts in it")
    samples: int = Field(ge=1, description="Samples in it")
    cap_tokens: int = Field(ge=1, description="Length cap under which it was sampled")
    icc: float = Field(description="Share of the variance of log(1+tokens) between prompts")


class RoundCheck(_Model):
    """Real plain rounds, simulated with the fitted costs and their own lengths: the error of the whole model."""

    tp: int = Field(ge=1, description="Layout of the rounds: TP")
    engines: int = Field(ge=1, description="Layout of the rounds: engines")
    rounds: int = Field(ge=1, description="Rounds measured")
    overhead_s: float = Field(ge=0, description="Seconds that a round takes whatever it decodes, beyond phase costs")
    overhead_s_per_sample: float = Field(ge=0, description="Seconds more per finished sample, likewise")
    factor: float = Field(gt=0, description="What the rest of its rollout takes, over the simulated phase costs")
    error: float = Field(ge=0, description="Mean relative error of a left-out round's rollout seconds")


class Volatile(_Model):
    """Facts about the measuring that no digest and no decision depends on."""

    measured_at: str = Field(description="When the measuring ended, UTC, ISO 8601")
    measuring_s: float = Field(ge=0, description="How long it took, seconds")
    versions: dict[str, str] = Field(description="Versions of python, torch, vllm, ray, transformers, rlplan")


class Profile(_Model):
    """The document `profile.yaml`."""

    rlplan_profile: Literal[1] = Field(description="Version of this document's shape")
    job: str = Field(description="Name of the job that was profiled")
    measured: str = Field(description="Digest of what the job measures: model, data, reward, rollout (subject.py)")
    provenance: Literal["measured", "derived", "estimated"] = Field(description="Where the values come from")
    machine: Machine = Field(description="What was measured on")
    model_parameters: int = Field(ge=1, description="Parameters of the policy")
    rollout: tuple[Rollout, ...] = Field(min_length=1, description="One entry per layout")
    train: tuple[Train, ...] = Field(min_length=1, description="One entry per micro-batch budget")
    reward: Reward = Field(description="Scoring")
    lengths: Lengths = Field(description="The length trace")
    checks: tuple[RoundCheck, ...] = Field(description="The whole model against real rounds")
    outliers: tuple[str, ...] = Field(default=(), description="Measurements that were left out, each named")
    volatile: Volatile = Field(description="When and with what; covered by no digest")
