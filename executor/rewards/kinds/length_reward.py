"""Rewards that look at the length of a response alone: a penalty beyond a target, and DAPO's close to the cap."""

from __future__ import annotations

from ....plans.schema.reward_spec import RewardSpec


def beyond_target(tokens: int, target_tokens: int, per_token: float) -> float:
    """0 up to `target_tokens`; each token beyond takes `per_token`."""
    return -per_token * max(tokens - target_tokens, 0)


def overlong(tokens: int, max_tokens: int, cache_tokens: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13): 0 up to `max_tokens - cache_tokens`, from there
    linearly down to -1 at `max_tokens`, and -1 beyond."""
    free = max_tokens - cache_tokens
    if tokens <= free:
        return 0.0
    return max((free - tokens) / cache_tokens, -1.0)


def length_value(part: RewardSpec, tokens: int, cap_tokens: int) -> float:
    """The value of a part of kind length or overlong for a response of so many tokens; `cap_tokens`: the job's
    longest response."""
    if part.kind == "length":
        assert part.target_tokens is not None and part.per_token is not None, "the schema demands both"
        return beyond_target(tokens, part.target_tokens, part.per_token)
    assert part.kind == "overlong" and part.cache_tokens is not None, "the schema demands it"
    return overlong(tokens, part.max_tokens or cap_tokens, part.cache_tokens)
