"""The twin's face: a round as Python describes it, in; its times and the fate of every draw, out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costs import DecodeCost, RewardCost
from ..simulator import RoundTimes
from . import state
from .kernel import World, simulate


@dataclass(frozen=True, slots=True)
class TwinRound:
    """A round of one kind, as the machines of rounds/ take it.

    Attributes:
        kind: state.RACE (`sync`, `race`, `defer`, and long rounds of these), state.EXACT_SHORT or state.EXACT_LONG.
        prompts: how many are issued at first.
        target: P; at most `prompts` groups are trained.
        group_size, samples: n, and how many are issued of a draw.
        max_tokens: the job's cap.
        cutoff_tokens: of `exact`, 0 elsewhere.
        copies: draws per prompt at once, long rounds of `exact`.
        refills: whether fresh prompts replace filtered ones (short rounds).
        dynamic_sampling: drop groups whose rewards are all equal.
    """

    kind: int
    prompts: int
    target: int
    group_size: int
    samples: int
    max_tokens: int
    cutoff_tokens: int = 0
    copies: int = 1
    refills: bool = True
    dynamic_sampling: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Luck:
    """What the round draws.

    Attributes:
        lengths: natural lengths, shape (rows, samples). Short rounds: row k is the draw of the k-th prompt, those
            beyond `prompts` are the feed for refills. Long rounds of `exact`: a prompt's draws from row `offset` on.
        prompt_tokens: by prompt (of the feed too).
        cap_tokens: the cap of the lengths.
        expected_tokens: what the balancer weighs a sample with.
        rewards: like `lengths`, or one number for all where no machine looks at them.
        offset: shape (prompts,), long rounds of `exact` only.
        more: the feed has more prompts than there are rows.
    """

    lengths: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]
    cap_tokens: int
    expected_tokens: float
    rewards: NDArray[np.float64] | float = 0.0
    offset: NDArray[np.int32] | int = 0
    more: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A round's times, and by draw in order of issue: its row, prompt, fate (state.py) and which samples are trained.

    `tokens` has the shape of `kept`, (draws, samples): what a sample has at its end. `exhausted`: by prompt.
    """

    times: RoundTimes
    row: NDArray[np.int32]
    prompt: NDArray[np.int32]
    fate: NDArray[np.int8]
    kept: NDArray[np.bool_]
    tokens: NDArray[np.int32]
    exhausted: NDArray[np.bool_]


class RanOut(Exception):
    """The round wants more draws than it was given rows for; give it more."""


@lru_cache(maxsize=256)
def _steps_s(decode: DecodeCost, most: int) -> Any:
    table = np.empty(most + 1, dtype=state.STEP)
    table["base_s"] = [decode.base_s(count) for count in range(most + 1)]
    table["kv_s"] = decode.c
    return table


def _record(spec: TwinRound, luck: Luck, decode: DecodeCost, reward: RewardCost, most: int) -> Any:
    round_ = np.zeros(1, dtype=state.ROUND)
    long = spec.kind == state.EXACT_LONG
    fields = {
        "kind": spec.kind,
        "target": min(spec.target, spec.prompts),
        "group": spec.group_size,
        "issue": spec.samples,
        "limit": spec.cutoff_tokens if spec.kind == state.EXACT_SHORT else spec.max_tokens,
        "cap": luck.cap_tokens,
        "cutoff": spec.cutoff_tokens,
        "dynamic": spec.dynamic_sampling,
        "refills": spec.refills,
        "watched": long,
        "over": spec.prompts / max(min(spec.target, spec.prompts), 1),
        "pending": -1,
        "rows": len(luck.lengths),
        "more": luck.more,
        "expected": luck.expected_tokens,
        "finish_s": decode.finish_s,
        "prefill_s": decode.prefill_s,
        "prefill_s_per_token": decode.prefill_s_per_token,
        "capacity": decode.kv_capacity_tokens,
        "most": most,
        "reward_s": reward.per_sample_s,
        "delay_s": reward.delay_s,
    }
    for name, value in fields.items():
        round_[name] = value
    return round_


def play(spec: TwinRound, luck: Luck, decode: DecodeCost, reward: RewardCost, max_num_seqs: int) -> Played:
    """Run a round to its end. Raises RanOut, and AssertionError if the round waits for nobody."""
    rows, width = luck.lengths.shape
    assert spec.prompts >= 1 and width >= spec.samples, "a round has prompts, and a draw its samples"
    most = min(max_num_seqs, rows * spec.samples)
    engines = np.zeros(decode.key.engines, dtype=state.ENGINE)
    engines["now"] = decode.round_s
    engines["upcoming"] = np.inf
    engines["youngest"] = engines["first"] = engines["last"] = -1
    prompts = np.zeros(len(luck.prompt_tokens), dtype=state.PROMPT)
    prompts["tokens"] = luck.prompt_tokens
    prompts["first"] = prompts["chosen"] = -1
    prompts["offset"] = luck.offset
    drawn = np.empty((rows, width), dtype=state.LUCK)
    drawn["natural"] = luck.lengths
    drawn["reward"] = luck.rewards
    round_ = _record(spec, luck, decode, reward, most)
    world = World(
        R=round_,
        E=engines,
        S=np.empty(rows * spec.samples, dtype=state.SAMPLE),
        D=np.empty(rows, dtype=state.DRAW),
        P=prompts,
        L=drawn,
        Q=np.empty(rows * spec.samples, dtype=state.REWARD),
        free=np.zeros(reward.workers),
        heaps=np.empty((len(engines), most), dtype=np.int32),
        steps_s=_steps_s(decode, most),
    )
    end_s = simulate(world, spec.prompts, spec.copies)
    [ended] = round_
    if ended["status"] == state.RAN_OUT:
        raise RanOut
    assert ended["status"] == state.DONE, "the round waits for nobody"
    return _played(ended, end_s, world, spec.samples)


def _played(ended: Any, end_s: float, world: World, width: int) -> Played:
    count = int(ended["draws"])
    draws = world.D[:count]
    samples = world.S[: count * width].reshape(count, width)
    return Played(
        times=RoundTimes(
            end_s=end_s,
            decode_end_s=min(float(ended["decode_end"]), end_s),
            decoded_tokens=int(world.E["decoded"].sum()),
            preemptions=int(world.E["preemptions"].sum()),
        ),
        row=draws["row"],
        prompt=draws["prompt"],
        fate=draws["fate"],
        kept=samples["rewarded"] & (draws["fate"] == state.TRAINED)[:, None],
        tokens=samples["tokens"],
        exhausted=world.P["exhausted"],
    )
