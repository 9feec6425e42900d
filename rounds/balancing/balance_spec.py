"""The numbers by which samples are balanced by history, and the seconds in which an engine would end its samples.

A decode step takes a constant, more by running sequence, and more by KV token. Summed over the steps of all its
samples, an engine ends after

    step_s * steps + step_s_per_sequence * tokens + step_s_per_kv_token * kv_steps

where `tokens` are those that it has yet to decode, and `kv_steps` the KV tokens that these attend to, summed over them.
`steps` are at least those of its longest sample, at least what its sequences at a time make of the tokens, and at least
what its KV cache makes of `kv_steps`. That is a bound from below, and close: what it leaves out is samples that leave a
place empty at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class BalanceSpec:
    """What a plan says of a round whose samples are balanced by history.

    Attributes:
        quantile: of a prompt's lengths, as its history has it, by which its samples are expected to end; in (0, 1).
        step_s, step_s_per_sequence, step_s_per_kv_token: seconds of a decode step, more by running sequence, and more
            by KV token.
        kv_capacity_tokens: KV tokens that an engine holds.
        move_s, move_s_per_token: seconds to stop a running sample and start it elsewhere, and more by token that it has
            there to prefill, its prompt's included.
    """

    quantile: float
    step_s: float
    step_s_per_sequence: float
    step_s_per_kv_token: float
    kv_capacity_tokens: int
    move_s: float
    move_s_per_token: float

    def end_s(self, work: Work, at_once: int) -> float:
        """Seconds in which an engine that decodes `at_once` samples at a time would end its work."""
        steps = max(work.longest, work.tokens / at_once, work.kv_steps / self.kv_capacity_tokens)
        return self.step_s * steps + self.step_s_per_sequence * work.tokens + self.step_s_per_kv_token * work.kv_steps

    def move_cost_s(self, tokens: int) -> float:
        """Seconds that a move of a sample of so many tokens, its prompt's included, takes."""
        return self.move_s + self.move_s_per_token * tokens


class Work(NamedTuple):
    """Samples as an engine has them before it: the tokens of the longest, of all, and the KV tokens that these attend
    to, summed over them."""

    longest: float = 0.0
    tokens: float = 0.0
    kv_steps: float = 0.0

    def and_one(self, held: float, left: float) -> Work:
        """With one sample more, which holds so many tokens and has so many before it."""
        return Work(max(self.longest, left), self.tokens + left, self.kv_steps + kv_steps(held, left))


def kv_steps(held: float, left: float) -> float:
    """KV tokens that `left` tokens of a sample attend to, summed over them, if it holds `held` before."""
    return left * (held + left / 2)


def work_of(samples: Iterable[tuple[float, float]]) -> Work:
    """The work of samples, each as (tokens that it holds, tokens before it)."""
    work = Work()
    for held, left in samples:
        work = work.and_one(held, left)
    return work
