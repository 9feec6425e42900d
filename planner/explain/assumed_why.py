"""The plan's words on what it rests on and nobody measured on its job."""

from __future__ import annotations

import math
import warnings

from ...plans.schema.job import Job
from ...plans.schema.predicted import Predicted
from ...plans.schema.sections.origin import LibraryInput
from ...profiles.reward_tables import RewardTable, reward_sha256
from ..lengths.table_lengths import TableTrace
from .assumed_effects import AssumedEffects, assumed_effects
from .holdout_rounds import Unseen


def with_assumed(
    predicted: Predicted, unseen: Unseen, job: Job, trace: object, rewards: RewardTable | None, seed: int
) -> tuple[Predicted, dict[str, str]]:
    """(the predictions with the errors of what is assumed, what `why` says of it). Arguments as of `assumed_effects`;
    `unseen` is what `predicted` was read from."""
    speedup = predicted.baseline.seconds_per_sample / predicted.seconds_per_sample
    effects = assumed_effects(unseen.search, unseen.cycle, unseen.baseline, job, trace, rewards, seed, speedup)
    error = {"assumed_lengths": effects.lengths_error, "assumed_rewards": effects.rewards_error}
    predicted = predicted.model_copy(update={"error": predicted.error.model_copy(update=error)})
    return predicted, assumed_why(effects, trace, rewards)


def rewards_named(rewards: RewardTable | None) -> LibraryInput | None:
    """How a plan names reward seconds that ship; None where it has none. Warns of a guess at somebody's function."""
    if rewards is None:
        return None
    if rewards.kind == "function":
        warnings.warn(
            f"nobody measured what the job's reward function takes; {rewards.per_sample_s:g} s a sample are assumed; "
            "measure it (rlplan profile), or import its times (rlplan rewards import)",
            stacklevel=4,
        )
    return LibraryInput(library=rewards.kind, sha256=reward_sha256(rewards.kind))


def assumed_why(effects: AssumedEffects, trace: object, rewards: RewardTable | None) -> dict[str, str]:
    """By key of `why`: whose figures they are, and what is left of the speed-up where they are off."""
    found = {}
    if isinstance(trace, TableTrace):
        table = trace.table
        factor = math.exp(table.error.scale)
        of = f"{table.model} on {table.task}" if table.model else table.source
        off = table.error.icc
        if trace.scale is None:
            told = effects.words("scale", f"lengths {1 / factor:.2g}x", f"lengths {factor:.2g}x")
        else:
            told = f"all lengths times {trace.scale:g}, as stated"
        dependence = effects.words("icc", f"ICC {off:g} lower", f"ICC {off:g} higher")
        found["lengths"] = (
            f"assumed, not of this job: '{table.name}', {of}, cap {table.cap_tokens} tokens, ICC {table.icc:g}; {told}"
            f"; {dependence}"
        )
    if rewards is not None:
        factor = math.exp(rewards.error.scale)
        if rewards.per_sample_s is not None:
            law = f"{rewards.per_sample_s:g} s a sample"
        else:
            assert rewards.right_s is not None and rewards.wrong_s is not None, "it has one of the two"
            law = (
                f"a right answer takes {_middle(rewards.right_s):g} s and a wrong one {_middle(rewards.wrong_s):g} s "
                f"in the median, and {rewards.hanging:.0%} of the wrong ones run until the deadline"
            )
        told = effects.words("seconds", f"rewards {1 / factor:.2g}x", f"rewards {factor:.2g}x")
        found["reward.seconds"] = f"assumed, not of this job, for kind {rewards.kind}: {law}; {told}"
    return found


def _middle(values: tuple[float, ...]) -> float:
    return values[len(values) // 2]
