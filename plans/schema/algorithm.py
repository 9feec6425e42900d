"""The job's `algorithm` section: named algorithms, and the settings that a job may override.

A key that the job leaves out has the value of the algorithm's paper. A job may override any of them; `overrides` lists
what it overrides, `check` prints that list and `solve` writes it into the plan.

None of the papers' KL terms is a default (later work leaves them out): `kl` asks for one. RLOO's paper clips nothing:
with one update a round the ratio is 1 but for the numerical difference of engine and trainer, and the clip only bounds
that.

What a loss is divided by is a constant of the plan, so that a token weighs the same in short and in long rounds. Two
settings divide by what a step itself has: `step-token-mean` and `reinforce_plus_plus_baseline`. With them a token of a
long round would weigh differently from one of a short round, so they go with mode sync alone (`Algorithm.whole_step`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from .base import NonNegative, Positive, Strict, cross_error, is_none

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "step-token-mean"]
AlgorithmName = Literal["grpo", "dr_grpo", "rloo", "gspo", "cispo", "reinforce_plus_plus_baseline"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Own(NamedTuple):
    """The settings of an algorithm's paper, beside its advantage (executor/trainer/train_samples.py)."""

    loss_aggregation: Aggregation
    clip_low: float = 0.2
    clip_high: float = 0.2
    dynamic_sampling: bool = False
    mask_truncated: bool = False
    dual_clip: float | None = None
    entropy_bonus: float = 0.0


OWN = {
    # arXiv 2402.03300, equation 3: the mean over a response's tokens, then over responses.
    "grpo": Own("seq-mean-token-mean"),
    # arXiv 2503.20783, section 3.2: neither std nor the response's length divides; a constant does.
    "dr_grpo": Own("seq-mean-token-sum-norm"),
    # arXiv 2402.14740, equation 8: the log-probability of the whole response, which is the sum over its tokens.
    "rloo": Own("seq-mean-token-sum-norm"),
    # arXiv 2507.18071, equation 5 and section 5.1: the ratio of whole responses, hence a thousandth of the usual clip.
    "gspo": Own("seq-mean-token-mean", clip_low=3e-4, clip_high=4e-4),
    # arXiv 2506.13585, equations 4 and 5: the ratio weighs the token and has no lower bound. The paper does not tell
    # its upper one; 5 is that of arXiv 2510.13786 (ScaleRL).
    "cispo": Own("token-mean", clip_low=1.0, clip_high=4.0),
    # arXiv 2501.03262, section 3: the mean over a response's tokens, then over responses.
    "reinforce_plus_plus_baseline": Own("seq-mean-token-mean"),
}
"""The settings of each algorithm, by its name."""


class LogprobLimitSpec(Strict):
    """How far the log-probabilities of engine and trainer may differ, in nats, over the response tokens of a step.

    Rounding alone explains more than the defaults in a mixture of experts, whose routers choose other experts for a
    token, and at low temperatures, by which differences are divided."""

    mean: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Limit of the mean absolute difference; null: 0.002 in float32, 0.1 in bfloat16, 0.05 in float16."""

    p99: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Limit of its 99th percentile; null: 0.01 in float32, 1 in bfloat16, 0.5 in float16."""

    action: Literal["stop", "warn"] = "stop"
    """What a step beyond a limit does: `stop`, it ends the run before a weight changes; `warn`, it is trained, and the
    trace and the terminal say so."""


def _no_default(schema: dict[str, Any]) -> None:
    """Remove the default from a JSON Schema: each algorithm has its own, as the description says."""
    schema.pop("default", None)


def _own(key: str) -> Any:
    """Return a field whose default is the algorithm's own value; `_own_values` replaces grpo's value by it."""
    return Field(default=getattr(OWN["grpo"], key), json_schema_extra=_no_default)


def _is_token(level: str) -> bool:
    """Return whether importance weights are for each token."""
    return level == "token"


class ImportanceSampling(Strict):
    """Correction of the difference between engine and trainer by importance weights, per token.

    The weight is exp(log-probability by the trainer before the update - that by the engine), a constant in the
    gradient; the clipped objective's ratio is then that of trainer to trainer. (Yao et al. 2025, "Your Efficient RL
    Framework Secretly Brings You Off-Policy RL Training"; the same as TRL's token_truncate and token_mask.)
    """

    level: Annotated[Literal["token", "none"], Field(exclude_if=_is_token)] = "token"
    """`token`: a weight for each token; `none`: no weights, also where they are the default."""

    cap: Annotated[float, Field(ge=1, le=1e6)] = 2.0
    """Largest weight of a token."""

    beyond: Literal["truncate", "mask"] = "truncate"
    """Tokens whose weight is above the cap: `truncate`: count by the cap; `mask`: are left out of the loss."""


def _is_zero(value: float) -> bool:
    """Return whether a coefficient changes nothing."""
    return value == 0.0


class ReferenceKl(Strict):
    """KL divergence of the policy from its reference: the model as the run began with it (`model.path`), frozen.

    With d = log-probability of a sampled token by the policy - that by the reference, an estimate of the token's KL is
    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (Schulman 2020, "Approximating KL Divergence").
    """

    coefficient: Annotated[float, Field(gt=0, le=100)]
    """Weight of the KL (verl's kl_loss_coef, TRL's beta)."""

    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How a token's KL is estimated; k1 goes with applied_to: reward alone, since its gradient is zero on average."""

    applied_to: Literal["loss", "reward"] = "loss"
    """`loss`: a token's estimate is added to its loss and aggregated as that is; importance weights do not act on it.
    `reward`: the estimates of a response's tokens are summed up and taken off its reward before advantages (verl's
    use_kl_in_reward), with the engine's log-probabilities as the policy's."""

    placement: Literal["auto", "device", "host"] = "auto"
    """Where trainers keep the reference: on their devices, or in host memory, from where each step brings it; `auto`:
    on the devices if the fastest update has room beside it, else in host memory."""

    @model_validator(mode="after")
    def _has_a_gradient(self) -> ReferenceKl:
        if (self.estimator, self.applied_to) == ("k1", "loss"):
            raise cross_error(
                "is k1, whose gradient in a loss is zero on average, so that nothing would hold the policy; write k3 "
                "or k2, or applied_to: reward",
                "estimator",
            )
        return self


class LearningRateSchedule(Strict):
    """How the learning rate changes from update to update; by default it does not."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: `constant`, or a fall to `final_share` over `decay_steps`, `linear` or along half a
    `cosine`."""

    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Updates over which the rate rises linearly to `learning_rate`."""

    decay_steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Updates after the warm-up over which the rate falls; needed for kinds linear and cosine, and only there."""

    final_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of `learning_rate` that is left after the fall."""

    @model_validator(mode="after")
    def _fields_agree(self) -> LearningRateSchedule:
        if self.kind != "constant" and self.decay_steps is None:
            raise cross_error(f"kind {self.kind} needs the key decay_steps: updates over which the rate falls", "kind")
        if self.kind == "constant" and (self.decay_steps is not None or self.final_share):
            raise cross_error(
                "decay_steps and final_share have no effect with kind constant; remove them, or write kind: linear or "
                "kind: cosine",
                "kind",
            )
        return self


def _is_constant(schedule: LearningRateSchedule) -> bool:
    """Return whether a schedule changes nothing."""
    return schedule == LearningRateSchedule()


class Algorithm(Strict):
    """The policy-gradient update."""

    name: AlgorithmName
    """`grpo`: advantage (r - mean)/std over the group; `dr_grpo`: r - mean; `rloo`: r - mean of the others; `gspo`:
    grpo's, with the probability ratio of the whole response (geometric mean over its tokens) in place of a token's;
    `cispo`: grpo's, with the clipped ratio as a constant weight of the token, so that no token is without a gradient;
    `reinforce_plus_plus_baseline`: r - mean over the group, divided by the standard deviation of all of the step's
    advantages; mode sync alone."""

    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    """AdamW's step size; with a schedule, the largest."""

    schedule: Annotated[LearningRateSchedule, Field(exclude_if=_is_constant)] = LearningRateSchedule()
    """Warm-up and decay of the learning rate."""

    weight_decay: NonNegative = 0.0
    """AdamW's decoupled weight decay; norms and biases have none."""

    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.999)
    """AdamW's two decay rates, each within [0, 1). A second one below 0.99 forgets within a cycle, so that a token of a
    long round moves weights less than one of a short round."""

    max_grad_norm: Positive = 1.0
    """Gradient norm above which a synchronous step's gradients are scaled down; where there are kinds of round, the
    plan states what each kind's is of it (`loss.grad_norms`)."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = _own("clip_low")
    """The probability ratio is clipped below at 1 - clip_low; default: the algorithm's: 0.2, of gspo 0.0003, of cispo 1
    (no bound)."""

    clip_high: Positive = _own("clip_high")
    """The probability ratio is clipped above at 1 + clip_high (DAPO's clip-higher when above clip_low); default: the
    algorithm's: 0.2, of gspo 0.0004, of cispo 4."""

    dual_clip: Annotated[float | None, Field(gt=1, le=1e6, exclude_if=is_none)] = None
    """Ratio above which a token of negative advantage has no gradient, so that none is pushed down without bound; dual
    clip's c (arXiv 1912.09729, which takes 3; verl's clip_ratio_c). Null: no bound."""

    entropy_bonus: Annotated[float, Field(ge=0, le=10, exclude_if=_is_zero)] = 0.0
    """Weight of the policy's entropy, in nats, which is added to the objective token by token and aggregated as the
    loss is. Groups whose rewards are all equal are trained for it, too."""

    kl: Annotated[ReferenceKl | None, Field(exclude_if=is_none)] = None
    """KL divergence from a reference, which holds the policy near the model that the run began with; null: none, and no
    reference is kept."""

    loss_aggregation: Aggregation = _own("loss_aggregation")
    """How token losses become one: `token-mean` (default of cispo): all tokens alike; `seq-mean-token-mean` (default of
    grpo, gspo and reinforce_plus_plus_baseline): all responses alike; `seq-mean-token-sum-norm` (default of dr_grpo and
    rloo): sum over a constant. These divide by numbers that the plan states, so that a step's total weight follows its
    lengths: with `token-mean` it is 4 times as large when responses are 4 times as long as the plan expects.
    `step-token-mean`: the mean over the step's own tokens, as DAPO's and verl's token-mean; its total weight is 1
    whatever the lengths, and a token weighs less the longer they are. In short and long rounds it would weigh a token
    differently, so it goes with mode sync alone."""

    dynamic_sampling: bool = _own("dynamic_sampling")
    """DAPO's filter: groups whose rewards are all equal are not trained, and are replaced by further prompts; default:
    the algorithm's, false for all."""

    mask_truncated: bool = _own("mask_truncated")
    """Leave samples that reached the cap out of the loss; default: the algorithm's, false for all."""

    importance_sampling: ImportanceSampling | None = None
    """Importance weights against the difference of engine and trainer; null: as `{}` where model.dtype is bfloat16 on
    GPUs (kind cuda); elsewhere, and with `{level: none}`, none: the clip alone bounds the difference."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of sampling in the engines and of the trainer."""

    @model_validator(mode="after")
    def _own_values(self) -> Algorithm:
        # Past the setters, so that these keys stay unset: `fmt` writes what the file has.
        self.__dict__.update({k: v for k, v in OWN[self.name]._asdict().items() if k not in self.model_fields_set})
        if self.name == "cispo" and self.dual_clip is not None:
            raise cross_error(
                f"is {self.dual_clip:g}, and cispo bounds the ratio of all tokens by 1 + clip_high; remove the key",
                "dual_clip",
            )
        if self.name == "reinforce_plus_plus_baseline" and self.entropy_bonus:
            raise cross_error(
                f"is {self.entropy_bonus:g}, and reinforce_plus_plus_baseline divides the gradients of a whole step by "
                "the spread of its advantages, a bonus with them; remove the key, or take another algorithm",
                "entropy_bonus",
            )
        if self.name == "reinforce_plus_plus_baseline" and self.learns_kl:
            raise cross_error(
                "is loss, and reinforce_plus_plus_baseline divides the gradients of a whole step by the spread of its "
                "advantages, those of the KL with them; write reward, or take another algorithm",
                "kl.applied_to",
            )
        return self

    @property
    def learns_kl(self) -> bool:
        """Return whether the loss has the KL to the reference, so that groups of equal rewards are trained, too."""
        return self.kl is not None and self.kl.applied_to == "loss"

    @property
    def whole_step(self) -> str | None:
        """Return the setting that divides by what a step itself has, as `key: value`; None: all divide by the plan's
        constants. With one, a plan has mode sync."""
        if self.loss_aggregation == "step-token-mean":
            return "loss_aggregation: step-token-mean"
        return f"name: {self.name}" if self.name == "reinforce_plus_plus_baseline" else None

    @property
    def divides_by_std(self) -> bool:
        """Return whether a group's advantages are divided by the standard deviation of its rewards."""
        return self.name in ("grpo", "gspo", "cispo")

    @property
    def corrects(self) -> bool | None:
        """Return whether the job turns importance weights on or off; None: it leaves that to `correction`."""
        return None if self.importance_sampling is None else self.importance_sampling.level != "none"

    def correction(self, dtype: str, kind: str) -> ImportanceSampling | None:
        """Return the importance weights of a job of this `model.dtype` on accelerators of this kind; None: none."""
        on = (dtype, kind) == ("bfloat16", "cuda") if self.corrects is None else self.corrects
        return self.importance_sampling or ImportanceSampling() if on else None

    def overrides(self) -> tuple[str, ...]:
        """Return the settings in which the job differs from its algorithm, each as `clip_high is 0.28 (grpo: 0.2)`."""
        own = OWN[self.name]._asdict()
        return tuple(
            f"{key} is {_yaml_text(getattr(self, key))} ({self.name}: {_yaml_text(value)})"
            for key, value in own.items()
            if getattr(self, key) != value
        )


def _yaml_text(value: object) -> str:
    """Return a value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
