"""The algorithm of a framework's configuration, as keys of the job's `algorithm` section.

Values are those in effect: what the configuration leaves out is the framework's default, which need not be rlplan's. A
KL is said as the framework has it, also where a job may not have it so (k1 in the loss).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .settings import Taken

ESTIMATORS = {"k1": "k1", "kl": "k1", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3"}
"""Estimators of the KL by the frameworks' names; those of others (abs, full) are left aside."""

_BASELINES = {
    "rloo": "rloo", "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "reinforce_baseline": "reinforce_plus_plus_baseline", "dr_grpo": "dr_grpo",
}  # fmt: skip
_MEANS = {
    "seq-mean-token-mean": "seq-mean-token-mean", "sequence_mean": "seq-mean-token-mean",
    "seq-mean-token-sum-norm": "seq-mean-token-sum-norm", "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
}  # fmt: skip


def _named(estimator: str, loss: str, by_std: bool) -> str:
    """The algorithm by the names of its advantage and its loss, and whether rewards are divided by their spread."""
    if loss in ("gspo", "cispo"):
        return loss
    return _BASELINES.get(estimator, "grpo" if by_std else "dr_grpo")


def _kl(taken: Taken, key: str, estimator: str, coefficient: float | None, applied_to: str) -> dict[str, Any]:
    """The KL to a reference as a key of `algorithm`; none where its coefficient is 0, or no estimator is known."""
    if not coefficient:
        return {}
    if estimator not in ESTIMATORS:
        taken.leave(key, estimator, "rlplan estimates a KL by k1, k2 or k3", "unresolved")
        return {}
    return {"kl": {"coefficient": coefficient, "estimator": ESTIMATORS[estimator], "applied_to": applied_to}}


def _some(**values: float | None) -> dict[str, Any]:
    """The values that are there and not 0."""
    return {key: value for key, value in values.items() if value}


def verl_algorithm(taken: Taken, estimator: str) -> Mapping[str, Any]:
    """verl's: `algorithm` and `actor_rollout_ref.actor`."""
    actor = "actor_rollout_ref.actor."
    mode = taken.text(None, f"{actor}policy_loss.loss_mode")
    name = _named(estimator, mode, taken.flag(None, "algorithm.norm_adv_by_std_in_grpo"))
    both = taken.number(None, f"{actor}clip_ratio") if taken.has(f"{actor}clip_ratio") else None
    low, high = (taken.number(None, f"{actor}clip_ratio_{side}", both) for side in ("low", "high"))
    kl: dict[str, Any] = {}
    if taken.flag(None, f"{actor}use_kl_loss"):
        key = f"{actor}kl_loss_type"
        kl = _kl(taken, key, taken.text(None, key), taken.number(None, f"{actor}kl_loss_coef"), "loss")
    if taken.flag(None, "algorithm.use_kl_in_reward"):
        key = "algorithm.kl_penalty"
        kl = kl or _kl(taken, key, taken.text(None, key), taken.number(None, "algorithm.kl_ctrl.kl_coef"), "reward")
    bound = taken.number(None, f"{actor}clip_ratio_c") if mode not in ("gspo", "cispo") else None
    entropy = taken.number(None, f"{actor}entropy_coeff")
    mean = _MEANS.get(taken.text(None, f"{actor}loss_agg_mode"), "token-mean")
    return {
        "name": name, **_some(clip_low=low, clip_high=high, dual_clip=bound, entropy_bonus=entropy),
        "loss_aggregation": mean, **kl,
    }  # fmt: skip


def trl_algorithm(taken: Taken) -> Mapping[str, Any]:
    """TRL's GRPOConfig. Its cispo states the ratio's bound itself, and has none below."""
    loss, level = taken.text(None, "loss_type"), taken.text(None, "importance_sampling_level")
    by_std = taken.text(None, "scale_rewards").lower() not in ("none", "false")
    name = _named("", "gspo" if level == "sequence" else loss, by_std)
    low = taken.number(None, "epsilon")
    high = taken.number(None, "epsilon_high") or low
    if name == "cispo":
        low, high = 1.0, max((high or 0.0) - 1.0, 0.0)
    means = {"grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
    return {
        "name": name,
        **_some(clip_low=low, clip_high=high, dual_clip=taken.number(None, "delta") if name != "cispo" else None,
                entropy_bonus=taken.number(None, "entropy_coef")),
        "loss_aggregation": means.get(loss, "token-mean"),
        **_kl(taken, "beta", "k3", taken.number(None, "beta"), "loss"),
    }  # fmt: skip


def skyrl_algorithm(taken: Taken) -> Mapping[str, Any]:
    """SkyRL's `trainer.algorithm`."""
    own = "trainer.algorithm."
    loss = taken.text(None, f"{own}policy_loss_type")
    name = _named(taken.text(None, f"{own}advantage_estimator"), loss, taken.flag(None, f"{own}grpo_norm_by_std"))
    bounds = f"{own}cispo.cispo_eps_clip" if name == "cispo" else f"{own}eps_clip"
    applied = next((to for to in ("loss", "reward") if taken.flag(
        None, f"{own}use_kl_{'loss' if to == 'loss' else 'in_reward'}")), None)  # fmt: skip
    key = f"{own}kl_estimator_type"
    coefficient = taken.number(None, f"{own}kl_loss_coef") if applied else None
    entropy = taken.number(None, f"{own}entropy_loss_coef") if taken.flag(None, f"{own}use_entropy_loss") else None
    return {
        "name": name,
        **_some(clip_low=taken.number(None, f"{bounds}_low"), clip_high=taken.number(None, f"{bounds}_high"),
                dual_clip=taken.number(None, f"{own}clip_ratio_c") if loss == "dual_clip" else None,
                entropy_bonus=entropy),
        "loss_aggregation": _MEANS.get(taken.text(None, f"{own}loss_reduction"), "token-mean"),
        **_kl(taken, key, taken.text(None, key), coefficient, applied or ""),
    }  # fmt: skip


def openrlhf_algorithm(taken: Taken, estimator: str) -> Mapping[str, Any]:
    """OpenRLHF's flags; without a KL in the loss it is in the reward, after the rewards of a group are compared."""
    loss = taken.text(None, "--actor.policy_loss_type")
    both = re.findall(r"[\d.eE-]+", taken.text(None, "--actor.eps_clip_low_high"))
    low, high = map(float, both) if len(both) == 2 else [taken.number(None, "--actor.eps_clip")] * 2
    to = "loss" if taken.flag(None, "--algo.kl.use_loss") else "reward"
    return {
        "name": _named(estimator, loss, True),
        **_some(clip_low=low, clip_high=high, dual_clip=taken.number(None, "--actor.dual_clip"),
                entropy_bonus=taken.number(None, "--actor.entropy_coef")),
        "loss_aggregation": _MEANS.get(taken.text(None, "--actor.loss_agg_mode"), "token-mean"),
        **_kl(taken, "--algo.kl.estimator", taken.text(None, "--algo.kl.estimator"),
              taken.number(None, "--algo.kl.init_coef"), to),
    }  # fmt: skip


def slime_algorithm(taken: Taken, estimator: str) -> Mapping[str, Any]:
    """slime's and vime's flags; `--kl-coef` is no part of a group's advantages, and is left out."""
    by_std = not taken.flag(None, "--disable-grpo-std-normalization", False)
    low = taken.number(None, "--eps-clip")
    coefficient = taken.number(None, "--kl-loss-coef") if taken.flag(None, "--use-kl-loss") else None
    by_tokens = taken.flag(None, "--calculate-per-token-loss")
    return {
        "name": _named(estimator, "gspo" if estimator == "gspo" else "", by_std),
        **_some(clip_low=low, clip_high=taken.number(None, "--eps-clip-high") or low,
                dual_clip=taken.number(None, "--eps-clip-c"), entropy_bonus=taken.number(None, "--entropy-coef")),
        "loss_aggregation": "token-mean" if by_tokens else "seq-mean-token-mean",
        **_kl(taken, "--kl-loss-type", taken.text(None, "--kl-loss-type"), coefficient, "loss"),
    }  # fmt: skip
