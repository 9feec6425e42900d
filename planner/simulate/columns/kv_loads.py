"""What an engine's samples hold of its KV cache at once: loads of an engine, drawn from the length model.

A plan says how many KV tokens its engines have room for before any of its rounds is simulated, so that all of them are
simulated with that room. Loads are drawn on numbers of their own: a plan's draws do not change what it has room for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....rounds.machines.exact_queue import MAX_DRAWS
from ...choose.candidates.round_kinds import LongKey
from ...lengths.length_model import LengthModel

KV_MARGIN = 1.25
"""Times what an engine's samples are seen to hold at once that it has room for. What they hold is random, and the
model's lengths are those of a policy that goes on learning. Too little room only makes samples wait, or be prefilled
again, which is simulated; room that is never used costs nothing but what else could have stayed on the accelerator."""

_GROUPS = 4096
"""Groups that loads are drawn from."""

KV_LOADS = 32
"""Engines' loads that are drawn to see what samples hold at once; the fullest of them counts."""

Load = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Prompt tokens and response tokens of each sample, both of shape (`KV_LOADS`, samples of a load)."""


def kv_peak(prompt_tokens: NDArray[np.int64], tokens: NDArray[np.int64], waits: bool = False) -> int:
    """The most KV tokens that an engine's samples hold at once: of several loads, the fullest.

    Samples that begin together grow by a token a step, so the most is held as one of them ends, by it and those that
    are longer: at `t` tokens, sum over samples of at least `t` tokens of `prompt + t`. What prompts share is not
    counted.

    Args:
        prompt_tokens, tokens: of each sample, shape (loads, samples of a load).
        waits: further samples begin as others end, so that all may be at their ends at once.
    """
    if waits:
        return int((prompt_tokens + tokens).sum(axis=1).max())
    order = np.argsort(tokens, axis=1)
    ends, prompts = (np.take_along_axis(each, order, axis=1) for each in (tokens, prompt_tokens))
    running = np.arange(tokens.shape[1], 0, -1)
    of_prompts = prompts[:, ::-1].cumsum(axis=1)[:, ::-1]
    return int((of_prompts + running * ends).max())


@dataclass(frozen=True, slots=True)
class Loads:
    """Draws loads of groups of `group_size` samples, cut at `cap_tokens`, of which an engine has `together` each."""

    model: LengthModel
    group_size: int
    cap_tokens: int
    together: int

    def of_groups(self, samples: int, limit_tokens: int, longer: float = 0.0) -> Load:
        """Loads of so many samples, which end at the limit at the latest; `longer`: only of groups whose longest sample
        has more tokens."""
        model, rng = self.model, np.random.default_rng(KV_LOADS)
        groups = rng.integers(len(model.tables), size=max(_GROUPS, samples))
        tokens = np.minimum(model.draw_many(groups, (self.group_size,), rng), self.cap_tokens)
        of_groups = tokens.max(axis=1)
        # The longest there are, where none is longer.
        kept = np.flatnonzero(of_groups > min(longer, int(of_groups.max()) - 1))
        places = kept[rng.integers(len(kept), size=(KV_LOADS, -(-samples // self.together)))]
        drawn = np.minimum(tokens[places][..., : self.together], limit_tokens)
        prompts = np.broadcast_to(model.prompt_tokens[groups[places]][..., None], drawn.shape)
        return prompts.reshape(KV_LOADS, -1)[:, :samples], drawn.reshape(KV_LOADS, -1)[:, :samples]

    def of_long_round(self, key: LongKey, at_once: int, target: int, draws: int | None = None) -> Load:
        """Loads of a long round of `target` prompts: samples of deferred groups that run to their end; in `exact`,
        beside them draws that end at the cutoff at the latest. `at_once`: of an engine at most; `draws`: that a queue
        issues."""
        rule, model, size = key.deferral, self.model, self.group_size
        whole = min(at_once, -(-size * target // key.layout.engines))
        if rule.mode != "exact" or rule.cutoff_tokens is None:
            share = rule.long_share or max(0.0, 1.0 - target / max(rule.prompts, 1))
            (limit,) = model.group_max_quantiles(size, (1.0 - share,))
            return self.of_groups(whole, self.cap_tokens, limit - 1)
        long = 1.0 - (1.0 - model.share_beyond(rule.cutoff_tokens)) ** size
        # Of a prompt that is put off: a wave of draws begins when all before it were short (most_draws_at_once).
        weights, drawn, beside = long / max(long.sum(), 1e-12), key.copies, float(key.copies)
        while drawn < MAX_DRAWS:
            beside = max(beside, drawn * float((weights * (1.0 - long) ** drawn).sum()))
            drawn *= 2
        if draws is not None:
            beside = draws / target - 1.0
        further = min(at_once - whole, math.ceil(beside * whole))
        prompts, tokens = self.of_groups(whole, self.cap_tokens, rule.cutoff_tokens)
        if further <= 0:
            return prompts, tokens
        more = self.of_groups(further, rule.cutoff_tokens)
        return np.hstack([prompts, more[0]]), np.hstack([tokens, more[1]])
