"""One simulated round from arrays of draws: by the compiled simulator, or by the reference where it is observed.

Both take the same description of a round and give the same account, so callers need not know which one runs.
The compiled simulator covers every round in which nothing is lost and nothing fails; no other is simulated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...rounds.balancing.placement import shared_tokens
from ...rounds.compiled import kernel_state
from ...rounds.machines.events import SampleKey
from ...rounds.machines.round import Draw, Round
from ...rounds.round_spec import RoundKind
from ..costs.decode_costs import ChangeCost, DecodeCost
from ..costs.reward_costs import RewardCost
from .reference_round import Observe, RoundLengths, simulate_round, weight
from .round_arrays import FATES, RanOut, RoundDraws, RoundTimes, SimulatedRound


def simulate_one_round(
    round_kind: RoundKind,
    round_draws: RoundDraws,
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
    change: ChangeCost | None = None,
    *,
    observe: Observe | None = None,
) -> SimulatedRound:
    """Simulate a round to its end by the compiled kernel, or by the machines themselves, some forty times slower.

    By the machines: rounds that are balanced by history, since the kernel places by load, and rounds that are observed,
    since the kernel reports no events. `observe` gets the events of the round (reference_round.Observe).

    Raises RanOut if the rows do not suffice, AssertionError if the round waits for something that cannot come.
    """
    rows, width = round_draws.lengths.shape
    prompts = len(round_draws.prompt_tokens)
    assert 1 <= round_kind.prompts <= prompts and 1 <= round_kind.group_size <= round_kind.samples <= width
    assert (round_draws.offset is not None) == round_kind.redraws
    assert rows == (prompts if round_draws.offset is None else round_draws.offset[-1]), "rows belong to prompts"
    if observe is not None or decode.balance is not None:
        return _reference(round_kind, round_draws, decode, reward, max_num_seqs, change, observe)
    return _compiled(round_kind, round_draws, decode, reward, max_num_seqs, change)


# -- the reference -----------------------------------------------------------------------------------------------------


def machine_of(round_kind: RoundKind, round_draws: RoundDraws) -> Round:
    """The machine of a round; its prompts are named by their indices in `round_draws`."""
    names = [str(place) for place in range(len(round_draws.prompt_tokens))]
    issued, feed = names[: round_kind.prompts], names[round_kind.prompts :]

    def take(count: int) -> list[str]:
        if count > len(feed) and round_draws.more:
            raise RanOut
        taken = feed[:count]
        del feed[:count]
        return taken

    return round_kind.machine(issued, take)


def _reference(
    round_kind: RoundKind,
    round_draws: RoundDraws,
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
    change: ChangeCost | None,
    observe: Observe | None,
) -> SimulatedRound:
    machine = machine_of(round_kind, round_draws)
    rows: list[int] = []  # by draw

    def row_of(draw: Draw) -> int:
        place = int(draw.prompt)
        if round_draws.offset is None:
            return place
        nth = sum(earlier.prompt == draw.prompt for earlier in machine.draws[: draw.number])
        if round_draws.offset[place] + nth >= round_draws.offset[place + 1]:
            raise RanOut
        return int(round_draws.offset[place]) + nth

    def natural(key: SampleKey, prompt: str) -> int:
        while len(rows) <= key.draw:
            rows.append(row_of(machine.draws[len(rows)]))
        return int(round_draws.lengths[rows[key.draw], key.sample])

    def read(table: NDArray[np.float64] | float) -> Callable[[SampleKey, str], float]:
        whole = np.broadcast_to(table, round_draws.lengths.shape)
        return lambda key, prompt: float(whole[rows[key.draw], key.sample])

    reward_draws, prompt_draws = (
        read(round_draws.reward_draws),
        np.broadcast_to(round_draws.prompt_draws, round_draws.prompt_tokens.shape),
    )
    lengths = RoundLengths(
        natural=natural,
        prompt_tokens=lambda prompt: int(round_draws.prompt_tokens[int(prompt)]),
        reward=read(round_draws.rewards),
        cap_tokens=round_draws.cap_tokens,
        expected_tokens=round_draws.expected_tokens,
        recorded=round_draws.recorded,
        reward_s=lambda key, prompt, tokens: reward.sample_s(
            float(prompt_draws[int(prompt)]), reward_draws(key, prompt), tokens
        ),
    )
    ready: dict[int, float] = {}
    target = min(round_kind.target, round_kind.prompts)
    times = simulate_round(
        machine, lengths, decode, reward, max_num_seqs, observe, change=change,
        samples_to_train=target * round_kind.group_size, on_ready=ready.__setitem__,
    )  # fmt: skip
    outcome = machine.outcome()
    kept = np.zeros((len(machine.draws), round_kind.samples), dtype=np.bool_)
    for group in outcome.trained:
        for key in group.keys:
            kept[key.draw, key.sample] = True
    return SimulatedRound(
        times=times,
        row=np.array(rows, dtype=np.int32),
        prompt=np.array([int(d.prompt) for d in machine.draws], dtype=np.int32),
        fate=np.array([FATES[d.fate] for d in machine.draws if d.fate is not None], dtype=np.int8),
        kept=kept,
        exhausted=np.isin(np.arange(len(round_draws.prompt_tokens)).astype(str), outcome.exhausted),
        ready_s=np.array([ready.get(d.number, math.nan) for d in machine.draws]),
    )


# -- the compiled simulator --------------------------------------------------------------------------------------------


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


def _compiled(
    round_kind: RoundKind,
    round_draws: RoundDraws,
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
    change: ChangeCost | None,
) -> SimulatedRound:
    """Run a round in the kernel: arrays to its records, and its results back to arrays."""
    # numba takes a second to be imported, which only compiled rounds need
    from ...rounds.compiled import round_kernel
    from ...rounds.compiled.compiled_engines import tournament

    rows, width = round_draws.lengths.shape
    most = min(max_num_seqs, rows * round_kind.samples)
    drawn = np.empty((rows, width), dtype=kernel_state.DRAWN)
    drawn["natural"] = round_draws.lengths
    drawn["reward"] = round_draws.rewards
    drawn["reward_s"] = _reward_s(round_kind, round_draws, reward)
    engines = _engines(decode, change)
    world = round_kernel.World(
        state=_round(round_kind, round_draws, decode, reward, most, change),
        engines=engines,
        samples=np.empty(rows * round_kind.samples, dtype=kernel_state.SAMPLE),
        draws=np.empty(rows, dtype=kernel_state.DRAW),
        prompts=_prompts(round_kind, round_draws, decode),
        # Each sample is put on an engine once, and once more if engines change.
        prefixes=np.empty((1 if change is None else 2) * rows * round_kind.samples, dtype=kernel_state.PREFIX),
        soonest=tournament(len(engines)),
        least_loaded=tournament(len(engines), decode.key.engines),
        touched=np.empty(len(engines), dtype=np.int32),
        drawn=drawn,
        rewards=np.empty(rows * round_kind.samples, dtype=kernel_state.REWARD),
        free=np.zeros(reward.workers),
        heaps=np.empty((len(engines), most), dtype=np.int32),
        # The kernel writes the later costs over the earlier ones where engines change.
        steps_s=_steps_s(decode, most) if change is None else _steps_s(decode, most).copy(),
        after_s=_steps_s(decode if change is None else change.after, most),
    )
    end_s = round_kernel.simulate(world, max(round_kind.copies, default=1))
    [ended] = world.state
    if ended["status"] == kernel_state.RAN_OUT:
        raise RanOut
    assert ended["status"] == kernel_state.DONE, "the round waits for nothing"
    draws = world.draws[: ended["draws"]]
    samples = world.samples[: ended["samples"]].reshape(len(draws), ended["issue"])
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
        exhausted=world.prompts["exhausted"],
        ready_s=np.where(draws["fate"] == kernel_state.TRAINED, draws["ready_s"], np.nan),
    )
