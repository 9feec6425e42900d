"""Real rounds compared with the simulator: the seconds that the phase costs miss, and the error of the whole model.

A measured round is simulated with the fitted costs and with its own lengths, so that only
errors of the costs make it differ. Some of it comes once a round (messages), some with every sample (its way through
queues, detokenizer and reward workers), some with every decode step (a machine that others use too): a layout's rounds
are fitted by `overhead_s + overhead_s_per_sample * samples + factor * simulated`, none negative, and the stored error
is of rounds left out of the fit. How far single rounds lie from the fit is the machine's noise from step to step
(columns/step_noise.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from ...profiles.laws.measured_fit import MeasuredRound, leave_one_out_error, nonnegative_least_squares, residual_noise
from ...profiles.profile_schema import Profile, RoundCheck
from ...rounds.machines.events import SampleKey
from ...rounds.machines.race import RaceRound
from ..costs.decode_costs import DecodeCost, decode_cost
from ..costs.reward_costs import RewardCost
from .reference_round import RoundLengths, simulate_round


def simulated_s(real: MeasuredRound, decode: DecodeCost, profile: Profile, prompt_tokens: Mapping[str, int]) -> float:
    """Seconds to the last token of `real`, simulated with its own lengths."""
    prompts: list[str] = []
    for (draw, sample), (prompt, _, _) in sorted(real.lengths.items()):
        if sample == 0:
            assert draw == len(prompts), "draws are numbered from 0"
            prompts.append(prompt)
    size = len(real.lengths) // len(prompts)
    cap = real.cap_tokens
    machine = RaceRound(prompts, len(prompts), size, size, cap)

    def natural(key: SampleKey, prompt: str) -> int:
        return real.lengths[key][1]

    lengths = RoundLengths(natural, lambda prompt: prompt_tokens[prompt], lambda key, prompt: 0.0, cap)
    reward = RewardCost(profile.reward.workers, profile.reward.per_sample_s, 0.0)  # looked at till decoding ends only
    times = simulate_round(machine, lengths, decode, reward, 10**9)
    return times.decode_end_s


def check_rounds(
    profile: Profile, rounds: Sequence[MeasuredRound], prompt_tokens: Mapping[str, int]
) -> list[RoundCheck]:
    """Round checks of a profile, one per engine layout that was run. `profile` has no checks yet."""
    assert not profile.checks, "factors would be counted twice"
    checks: list[RoundCheck] = []
    for rollout in profile.rollout:
        decode = decode_cost(profile, rollout)
        layout_rounds = [real for real in rounds if real.layout == decode.key]
        if not layout_rounds:
            continue
        rows = np.array(
            [[1.0, len(real.lengths), simulated_s(real, decode, profile, prompt_tokens)] for real in layout_rounds],
            dtype=float,
        )
        measured = np.array([real.rollout_s for real in layout_rounds])
        overhead, per_sample, factor = nonnegative_least_squares(rows, measured)
        error, noise = leave_one_out_error(rows, measured), residual_noise(rows, measured)
        if factor <= 0:  # all rounds took the same time, whatever they decoded: nothing tells the terms apart
            overhead, per_sample, factor = 0.0, 0.0, statistics.median(measured / rows[:, 2])
            error = float(np.mean(np.abs(factor * rows[:, 2] / measured - 1)))
            noise = residual_noise(rows[:, 2:], measured)
        checks.append(
            RoundCheck(
                tp=rollout.tp,
                engines=rollout.engines,
                rounds=len(layout_rounds),
                overhead_s=float(overhead),
                overhead_s_per_sample=float(per_sample),
                factor=float(factor),
                error=error,
                noise=noise,
            )
        )
    return checks
