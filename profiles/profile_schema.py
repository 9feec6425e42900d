"""The profile: what each phase costs on one machine, as a few coefficients with their spread and their error.

A decode step is close to a line in the running sequences and the KV tokens that they hold, so a profile is small enough
to review. Rollout costs belong to a *layout* (TP size and number of engines): on a CPU, engines share cores, memory
bandwidth and the driver, so two engines are not twice one engine; on GPUs the layouts of one TP agree.

A profile is measured (`rlplan profile`), or derived from data sheets and public measurements (library/): then it has no
length trace and no rounds, `evidence` says of each value where it comes from and how far it may be off, and training is
a law over all layouts instead of a list of measured ones.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..plans.schema.base import NonNegative, Positive, cross_error, is_empty, is_none, is_zero
from ..plans.schema.levers import EngineLayout
from ..plans.schema.reward_spec import RewardAudit
from .draft_schema import ProfiledDrafts
from .judge_schema import Judge
from .phase_schema import ProfileModel, Reward, Rollout, Train, TrainedAdapters, TrainLaw, Whole

Dtype = Literal["float32", "bfloat16", "float16"]


class Machine(ProfileModel):
    """What was measured on. `plan` and `profile` refuse to be used on another machine unless forced.

    Of a derived profile only the kind and the name of the accelerator say something; the host is a usual one.
    """

    accelerator: str
    """Name of the accelerator, as the platform reports it"""

    kind: Literal["cpu", "cuda"]
    """Kind of accelerator"""

    accelerators: Whole
    """Accelerators per node"""

    cores: Whole
    """Host cores per node"""

    host_memory_bytes: Whole
    """Bytes of host memory per node"""

    peak_flops: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Operations a second of one accelerator (on CPUs a core) in a large product of matrices, measured; null: the GPU's
    data sheet"""

    peak_bytes_per_s: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Bytes a second of its memory, read and written by a large copy, measured; null: likewise"""


class PolicyShape(ProfileModel):
    """What the distance to the hardware's limit is told by (laws/hardware_peaks.py)."""

    active_parameters: Whole
    """Parameters that a token uses, embeddings counted"""

    attention_width: Annotated[int, Field(ge=0, le=10**12)]
    """Layers x heads x head size, of layers that see all tokens; 0: not known"""

    dtype: Dtype
    """The job's model.dtype"""

    expert_share: Annotated[float, Field(ge=0, le=1, exclude_if=is_zero)] = 0.0
    """Share of a layer's experts that a token visits; 0: of a dense model, or not known"""


class ProfileLengths(ProfileModel):
    """The length trace beside the profile."""

    path: str
    """JSONL file beside the profile: prompt, epoch, sample, tokens, truncated, reward"""

    sha256: str
    """Digest of that file"""

    prompts: Whole
    """Number of different prompts in the trace"""

    samples: Whole
    """Number of responses in the trace"""

    cap_tokens: Whole
    """Cap on a response when the trace was sampled"""

    icc: Annotated[float | None, Field(exclude_if=is_none)] = None
    """Share of the variance of log(1+tokens) between prompts; null: one response to each, or one prompt"""


class RoundCheck(ProfileModel):
    """Real plain rounds beside their simulation with the fitted costs: the error of the whole model."""

    tp: Whole
    """TP of the engines in these rounds"""

    engines: Whole
    """Number of engines in these rounds"""

    rounds: Whole
    """Number of rounds that were measured"""

    overhead_s: NonNegative
    """Seconds that a round takes beyond the phases' costs, whatever it decodes"""

    overhead_s_per_sample: NonNegative
    """Seconds that each finished sample adds beyond the phases' costs"""

    factor: Positive
    """Factor on the simulated seconds of the rollout, beside these overheads"""

    error: NonNegative
    """Mean relative error of a left-out round's rollout seconds"""

    noise: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Relative standard deviation of a round's rollout about the fit; null: as `error` has it"""

    @property
    def layout(self) -> EngineLayout:
        """The engines of the rounds."""
        return EngineLayout(self.tp, self.engines)


class ProfileVolatile(ProfileModel):
    """Facts about the measuring that no digest and no decision depends on."""

    measured_at: str
    """When the measuring ended, UTC, ISO 8601"""

    measuring_s: NonNegative
    """How long it took, seconds"""

    versions: dict[str, str]
    """Versions of python, torch, vllm, ray, transformers, rlplan"""


class Profile(ProfileModel):
    """The document `profile.yaml`."""

    rlplan_profile: Literal[1]
    """Version of this document's shape"""

    job: str
    """Name of the job that was profiled; of a derived profile, its own name"""

    measured: str = ""
    """Digest of the parts of the job that were measured: model, data, reward, rollout; empty in a derived profile"""

    provenance: Literal["measured", "derived", "estimated"]
    """Where the values come from"""

    note: str = ""
    """What a reader must know before using the profile"""

    scaled: Annotated[str, Field(exclude_if=is_empty)] = ""
    """From which model's the costs were scaled to this one's, with what error; empty: they are its own"""

    machine: Machine
    """Machine that the costs were measured on"""

    model_parameters: Whole
    """Parameters of the policy"""

    shape: Annotated[PolicyShape | None, Field(exclude_if=is_none)] = None
    """Shape of the policy; null: that of `train_law.model`, or unknown"""

    adapters: Annotated[TrainedAdapters | None, Field(exclude_if=is_none)] = None
    """Adapters that the profile's updates and weight transfers are of; null: the weights are trained"""

    rollout: Annotated[tuple[Rollout, ...], Field(min_length=1)]
    """Costs of generation, one entry for each layout of engines"""

    train: tuple[Train, ...] = ()
    """Costs of an update, one entry for each layout and micro-batch budget"""

    train_law: TrainLaw | None = None
    """Costs of an update in any layout; an entry of `train` for that layout goes before it"""

    reward: Reward
    """Costs of scoring"""

    reward_audit: Annotated[RewardAudit | None, Field(exclude_if=is_none)] = None
    """Whether the reward pays the data's own answers and no wrong ones; null: not asked"""

    judge: Annotated[Judge | None, Field(exclude_if=is_none)] = None
    """Costs of scoring by a model; null: not known"""

    drafts: Annotated[ProfiledDrafts | None, Field(exclude_if=is_none)] = None
    """Gains and costs of drafts; null: not measured"""

    lengths: ProfileLengths | None = None
    """The length trace; a derived profile has none"""

    checks: tuple[RoundCheck, ...] = ()
    """Real rounds beside their simulation with the fitted costs"""

    outliers: tuple[str, ...] = ()
    """Measurements that were left out of the fit, each by name"""

    sources: dict[str, str] = Field(default={})
    """The sources that `evidence` refers to, in words"""

    volatile: ProfileVolatile | None = None
    """When and with what the profile was measured; no digest covers it"""

    @model_validator(mode="after")
    def _complete(self) -> Profile:
        if not self.train and self.train_law is None:
            raise cross_error("holds no training cost; write train or train_law", "train")
        if self.shape is not None and self.shape.active_parameters > self.model_parameters:
            raise cross_error(
                f"a token uses at most all {self.model_parameters} parameters of the model (model_parameters)",
                "shape.active_parameters",
            )
        if self.provenance == "measured" and (self.lengths is None or not self.measured):
            raise cross_error(
                "a measured profile names what it is of (measured) and its length trace (lengths)", "lengths"
            )
        for of, keys in self._keys().items():
            twice = [key for key, count in Counter(keys).items() if count > 1]
            if twice:
                raise cross_error(f"two entries of {of} are both for {twice[0]}; keep one of them", of)
        evidence = [*(entry.evidence for entry in self.rollout), self.reward.evidence]
        evidence += [self.judge.evidence] if self.judge is not None else []
        cited = {e.source for of in evidence for e in of.values()}
        cited |= {self.train_law.source} if self.train_law is not None else set()
        unknown = sorted(cited - set(self.sources))
        if unknown:
            raise cross_error(f"evidence cites {', '.join(unknown)}; say under sources what that is", "sources")
        return self

    def sent_bytes(self, weight_bytes: float) -> float:
        """Bytes that a weight transfer sends: of all weights, `weight_bytes` each, or of adapters alone, in float32."""
        if self.adapters is not None and self.adapters.sent == "adapter":
            return 4.0 * self.adapters.parameters
        return weight_bytes * self.model_parameters

    def _keys(self) -> dict[str, list[str]]:
        """By list: what its entries are looked up by, in words. A plan names no more of them."""
        return {
            "rollout": [f"tp {r.tp}, engines {r.engines}" for r in self.rollout],
            "train": [
                f"dp {t.dp}, tp {t.tp}, pp {t.pp}, cp {t.cp}, sp {t.sp}, state_copies {t.state_copies}, ep {t.ep}, "
                f"micro_batch_tokens {t.micro_batch_tokens}, recompute {t.recompute}, offload {str(t.offload).lower()}"
                for t in self.train
            ],
            "checks": [f"tp {c.tp}, engines {c.engines}" for c in self.checks],
        }
