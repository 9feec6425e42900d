"""The supply of prompts: whether the data has enough for rounds that take others in place of groups they do not train.

Rounds are simulated on prompts without end. A data set is finite: a round that has put off or filtered every prompt
that was free ends with fewer than P groups, which a plan's predictions do not know of.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ....rounds.round_spec import prompts_wanted
from ...lengths.length_model import LengthModel
from .round_kinds import ShortKey

# Below this share no caution is given: its figure would be a guess, and the data is far too small anyway.
_LEAST_ACCEPTED = 1e-3


def accepted_share(model: LengthModel, cutoff_tokens: int | None, group_size: int, dynamic_sampling: bool) -> float:
    """Share of the groups issued by short rounds that these may train, in (0, 1], over the traced prompts."""
    share = np.ones(len(model.prompt_ids))
    if cutoff_tokens is not None:
        share = (1.0 - model.share_beyond(cutoff_tokens)) ** group_size
    if dynamic_sampling:
        share = share * [1.0 - _all_alike(rewards, group_size) for rewards in model.rewards]
    return max(_LEAST_ACCEPTED, float(share.mean()))


def _all_alike(rewards: tuple[float, ...], group_size: int) -> float:
    """Probability that so many rewards, each picked from the traced ones, are equal."""
    return float(sum((count / len(rewards)) ** group_size for count in Counter(rewards).values()))


def few_for_refills(
    model: LengthModel,
    key: ShortKey,
    target: int,
    group_size: int,
    dynamic_sampling: bool,
    prompts: int,
    queue: int | None = None,
) -> str | None:
    """A caution where the `prompts` of the data are too few for every step to train `target` groups; None if all but a
    few in a thousand do. `queue`: Q, where long rounds are by queue."""
    accepted = accepted_share(model, key.cutoff_tokens, group_size, dynamic_sampling)
    wanted = prompts_wanted(key.mode, target, key.prompts, key.long_share, accepted, queue)
    if prompts >= wanted:
        return None
    return (
        f"the data has {prompts} prompts, and short rounds want up to {wanted}: they train {accepted:.0%} of the "
        f"groups and take further prompts in the place of the others; some steps may train fewer than {target} groups, "
        "and the predictions do not include this; add prompts, or lower rollout.prompts_per_step"
    )
