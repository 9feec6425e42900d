"""Real rounds against the simulator: what the sum of the phase costs misses, and how wrong the whole model is.

A measured round is simulated with the fitted costs and with its own lengths, so that what differs is the costs' fault
alone: messages, the driver and the reward workers beside the engines, a machine that others use too. All of these come
with every decode step, so the median ratio of a layout becomes a `factor` on its costs; the error that is stored is of
each round with the factor of the *other* rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..profiles.schema import Profile, RoundCheck
from ..rounds.events import SampleKey
from ..rounds.race import RaceRound
from .costs import DecodeCost, LayoutKey, decode_cost, reward_cost
from .simulator import Lengths, simulate_round


@dataclass(frozen=True, slots=True)
class RealRound:
    """A plain round that was measured: `lengths` maps (draw, sample) to (prompt, tokens, truncated)."""

    tp: int
    engines: int
    lengths: Mapping[tuple[int, int], tuple[str, int, bool]]
    rollout_s: float


def simulated_s(real: RealRound, decode: DecodeCost, profile: Profile, prompt_tokens: Mapping[str, int]) -> float:
    """Seconds to the last token of `real`, simulated with its own lengths."""
    prompts: list[str] = []
    for (draw, sample), (prompt, _, _) in sorted(real.lengths.items()):
        if sample == 0:
            assert draw == len(prompts), "draws are numbered from 0"
            prompts.append(prompt)
    size = len(real.lengths) // len(prompts)
    cap = profile.lengths.cap_tokens
    machine = RaceRound(prompts, len(prompts), size, size, cap)

    def natural(key: SampleKey, prompt: str) -> int:
        return real.lengths[key][1]

    lengths = Lengths(natural, lambda prompt: prompt_tokens[prompt], lambda key, prompt: 0.0, cap)
    times = simulate_round(machine, lengths, decode, reward_cost(profile.reward, profile.reward.workers), 10**9)
    return times.decode_end_s


def check_rounds(profile: Profile, rounds: Sequence[RealRound], prompt_tokens: Mapping[str, int]) -> list[RoundCheck]:
    """One check per layout that was run. `profile` has no checks yet, so its factors are 1."""
    assert not profile.checks, "factors would be counted twice"
    checks: list[RoundCheck] = []
    for rollout in profile.rollout:
        decode = decode_cost(profile, rollout)
        own = [real for real in rounds if LayoutKey(real.tp, real.engines) == decode.key]
        if not own:
            continue
        simulated = [simulated_s(real, decode, profile, prompt_tokens) for real in own]
        ratios = [real.rollout_s / seconds for real, seconds in zip(own, simulated, strict=True)]
        errors: list[float] = []
        for index, ratio in enumerate(ratios):
            others = [r for i, r in enumerate(ratios) if i != index] or [1.0]
            errors.append(abs(statistics.median(others) / ratio - 1))
        checks.append(
            RoundCheck(
                tp=rollout.tp,
                engines=rollout.engines,
                rounds=len(own),
                factor=statistics.median(ratios),
                error=statistics.fmean(errors),
            )
        )
    return checks
