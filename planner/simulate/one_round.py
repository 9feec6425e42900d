"""One simulated round from arrays of draws: by the compiled simulator, or, by a switch, by the reference.

Both take the same description of a round and give the same account, so callers need not know which one runs.
The compiled simulator covers every round in which nothing is lost and nothing fails; no other is simulated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...rounds.machines.events import SampleKey
from ...rounds.machines.round import Draw, Round
from ...rounds.round_spec import RoundKind
from ..costs.decode_costs import ChangeCost, DecodeCost
from ..costs.reward_costs import RewardCost
from .reference_round import Lengths, Observe, simulate_round
from .round_arrays import FATES, RanOut, RoundDraws, SimulatedRound


def simulate_one_round(
    round_kind: RoundKind,
    round_draws: RoundDraws,
    decode: DecodeCost,
    reward: RewardCost,
    max_num_seqs: int,
    change: ChangeCost | None = None,
    *,
    reference: bool = False,
    observe: Observe | None = None,
) -> SimulatedRound:
    """Simulate a round to its end; with `reference` by the machines themselves, some forty times slower.

    Rounds that are balanced by history are always simulated by the machines: the compiled simulator places by load.
    `observe` gets the events of the round (reference_round.Observe). Only the reference reports events, so it is used.

    Raises RanOut if the rows do not suffice, AssertionError if the round waits for something that cannot come.
    """
    rows, width = round_draws.lengths.shape
    prompts = len(round_draws.prompt_tokens)
    assert 1 <= round_kind.prompts <= prompts and 1 <= round_kind.group_size <= round_kind.samples <= width
    assert (round_draws.offset is not None) == round_kind.redraws
    assert rows == (prompts if round_draws.offset is None else round_draws.offset[-1]), "rows belong to prompts"
    if reference or observe is not None or decode.balance is not None:
        return _reference(round_kind, round_draws, decode, reward, max_num_seqs, change, observe)
    from .compiled_round import run  # imports numba, which takes a second

    return run(round_kind, round_draws, decode, reward, max_num_seqs, change)


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
    lengths = Lengths(
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
