"""Run a round in the compiled kernel: arrays to the kernel's records, and its results back to arrays.

The caller, `one_round.simulate_one_round`, checks shapes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...rounds.balance import shared_tokens
from ...rounds.compiled import kernel_state
from ...rounds.compiled.round_kernel import World, simulate
from ...rounds.compiled.tournaments import tournament
from ...rounds.round_spec import RoundKind
from ..costs.decode_costs import ChangeCost, DecodeCost
from ..costs.reward_costs import RewardCost
from .reference_round import weight
from .round_arrays import RanOut, RoundDraws, RoundTimes, SimulatedRound

AFTER = ("finish_s", "prefill_s", "prefill_s_per_token", "prefill_s_per_token_squared")
"""Costs that other engines have after a change, beside their decode steps and their capacity."""


@lru_cache(maxsize=256)
def _steps_s(decode: DecodeCost, most: int) -> Any:
    table = np.empty(most + 1, dtype=kernel_state.STEP)
    table["base_s"] = [decode.base_s(count) for count in range(most + 1)]
    table["kv_s"] = [decode.kv_s(count) for count in range(most + 1)]
    return table


def _round(
    round_kind: RoundKind,
    round_draws: RoundDraws,
    decode: DecodeCost,
    reward: RewardCost,
    most: int,
    change: ChangeCost | None,
) -> Any:
    short = round_kind.name == "short"
    kind = kernel_state.RACE if not round_kind.exact else kernel_state.EXACT_SHORT if short else kernel_state.EXACT_LONG
    target = min(round_kind.target, round_kind.prompts)
    fields = {
        "kind": kind,
        "target": target,
        "group": round_kind.group_size,
        "issue": round_kind.group_size if round_kind.exact else round_kind.samples,
        "limit": round_kind.cutoff_tokens if kind == kernel_state.EXACT_SHORT else round_kind.max_tokens,
        "cap": round_draws.cap_tokens,
        "cutoff_tokens": round_kind.cutoff_tokens or 0,
        "dynamic": round_kind.dynamic_sampling,
        "refills": short,
        "watched": round_kind.redraws,
        "over": round_kind.prompts / max(target, 1),
        "prompts": round_kind.prompts,
        "pending": 0 if round_kind.redraws else -1,
        "rows": len(round_draws.lengths),
        "more": round_draws.more,
        "expected": weight(round_draws.expected_tokens),
        "finish_s": decode.finish_s,
        "prefill_s": decode.prefill_s,
        "prefill_s_per_token": decode.prefill_s_per_token,
        "prefill_s_per_token_squared": decode.prefill_s_per_token_squared,
        "capacity": decode.kv_capacity_tokens,
        "most": most,
        "delay_s": reward.delay_s,
        "after_rollout": reward.after_rollout,
        "held": -1,
    }
    round_ = np.zeros(1, dtype=kernel_state.ROUND)
    if change is not None:
        machine = change.machine(target * round_kind.group_size, decode.key.engines)
        on, after = change.numbers(decode.key.engines), change.after
        fields |= {"changes": True, "milestone": machine.milestone, "stride": machine.stride}
        fields |= {"growth": change.spec.growth_tokens, "before": decode.key.engines, "first_on": on.start}
        fields |= {"last_on": on.stop, "takes_s": change.takes_s}
        fields |= {f"after_{name}": getattr(after, name) for name in AFTER}
        fields["after_capacity"] = after.kv_capacity_tokens
    for name, value in fields.items():
        round_[name] = value
    return round_


def _engines(decode: DecodeCost, change: ChangeCost | None) -> Any:
    tail = [] if change is None or not change.is_tail else change.numbers(decode.key.engines)
    engines = np.zeros(decode.key.engines + len(tail), dtype=kernel_state.ENGINE)
    engines["now"] = decode.round_s
    if change is not None and len(tail):
        engines["now"][decode.key.engines :] = change.after.round_s
    engines["upcoming"] = np.inf
    engines["youngest"] = engines["first"] = engines["last"] = -1
    return engines


def _prompts(round_kind: RoundKind, round_draws: RoundDraws, decode: DecodeCost) -> Any:
    prompts = np.zeros(len(round_draws.prompt_tokens), dtype=kernel_state.PROMPT)
    tokens: Any = round_draws.prompt_tokens
    prompts["tokens"] = tokens
    prompts["shared"] = shared_tokens(tokens, decode.block_tokens)
    if decode.sharing is not None:
        prompts["lead"] = decode.sharing.lead(tokens) * weight(round_draws.expected_tokens)
    prompts["first"] = prompts["chosen"] = prompts["holders"] = -1
    if round_draws.offset is not None:
        prompts["offset"] = round_draws.offset[:-1]
        prompts["given"] = np.diff(round_draws.offset)
        prompts["copies"], prompts["until_long"] = round_kind.copies, round_kind.until_long
    return prompts


def _reward_s(round_kind: RoundKind, round_draws: RoundDraws, reward: RewardCost) -> Any:
    """Seconds of each sample's reward, shape (rows, samples), or one number for all."""

    def by_row(of_prompts: Any) -> Any:
        each = np.broadcast_to(of_prompts, round_draws.prompt_tokens.shape)
        return (each if round_draws.offset is None else np.repeat(each, np.diff(round_draws.offset)))[:, None]

    if reward.executions is not None:
        of_samples = np.broadcast_to(round_draws.reward_draws, round_draws.lengths.shape)
        return reward.executions.steady_many_s(reward.timeout, by_row(round_draws.prompt_draws), of_samples)
    if not reward.per_token_s:
        return reward.per_sample_s
    # Samples that the limit cuts are not scored, unless that limit is the cap.
    tokens = by_row(round_draws.prompt_tokens) + np.minimum(
        round_draws.lengths, min(round_kind.max_tokens, round_draws.cap_tokens)
    )
    return reward.per_sample_s + reward.per_token_s * tokens


def run(
    round_kind: RoundKind,
    round_draws: RoundDraws,
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
    change: ChangeCost | None,
) -> SimulatedRound:
    """Run a round to its end. Raises RanOut, and AssertionError if no event is left and the round is not done."""
    rows, width = round_draws.lengths.shape
    most = min(max_num_seqs, rows * round_kind.samples)
    drawn = np.empty((rows, width), dtype=kernel_state.DRAWN)
    drawn["natural"] = round_draws.lengths
    drawn["reward"] = round_draws.rewards
    drawn["reward_s"] = _reward_s(round_kind, round_draws, reward)
    engines = _engines(decode, change)
    world = World(
        R=_round(round_kind, round_draws, decode, reward, most, change),
        E=engines,
        S=np.empty(rows * round_kind.samples, dtype=kernel_state.SAMPLE),
        D=np.empty(rows, dtype=kernel_state.DRAW),
        P=_prompts(round_kind, round_draws, decode),
        # Each sample is put on an engine once, and once more if engines change.
        X=np.empty((1 if change is None else 2) * rows * round_kind.samples, dtype=kernel_state.PREFIX),
        T=tournament(len(engines)),
        B=tournament(len(engines), decode.key.engines),
        touched=np.empty(len(engines), dtype=np.int32),
        L=drawn,
        Q=np.empty(rows * round_kind.samples, dtype=kernel_state.REWARD),
        free=np.zeros(reward.workers),
        heaps=np.empty((len(engines), most), dtype=np.int32),
        # The kernel writes the later costs over the earlier ones where engines change.
        steps_s=_steps_s(decode, most) if change is None else _steps_s(decode, most).copy(),
        after_s=_steps_s(decode if change is None else change.after, most),
    )
    end_s = simulate(world, max(round_kind.copies, default=1))
    [ended] = world.R
    if ended["status"] == kernel_state.RAN_OUT:
        raise RanOut
    assert ended["status"] == kernel_state.DONE, "the round waits for nothing"
    draws = world.D[: ended["draws"]]
    samples = world.S[: ended["samples"]].reshape(len(draws), ended["issue"])
    return SimulatedRound(
        times=RoundTimes(
            end_s=end_s,
            decode_end_s=min(float(ended["decode_end"]), end_s),
            decoded_tokens=int(engines["decoded"].sum()),
            preemptions=int(engines["preemptions"].sum()),
            freed_s=float(ended["freed_s"]) if ended["freed"] else None,
            moved=int(ended["moved"]),
            cached_tokens=int(engines["cached"].sum()),
        ),
        row=draws["row"],
        prompt=draws["prompt"],
        fate=draws["fate"],
        kept=samples["rewarded"] & (draws["fate"] == kernel_state.TRAINED)[:, None],
        exhausted=world.P["exhausted"],
        ready_s=np.where(draws["fate"] == kernel_state.TRAINED, draws["ready_s"], np.nan),
    )
