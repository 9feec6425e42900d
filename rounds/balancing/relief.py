"""Which running samples move to an engine that has run dry: those whose move saves more seconds than it takes.

An engine without a sample offers itself to the engine that would end last. Of that one's samples, the longest first,
each moves whose move has both end sooner, taken together, by more than it takes to stop the sample, to send it and to
prefill what it has (`BalanceSpec.move_cost_s`). Where a step costs the same for one sequence as for many, one move, of
the longest, is worth as much as all; where each sequence costs, half of the samples move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..machines.events import SampleKey
from .balance_spec import BalanceSpec, work_of


class Running(NamedTuple):
    """A running sample: the tokens that it holds, its prompt's included, and those that it has before it."""

    key: SampleKey
    held: int
    left: float


def moves(
    spec: BalanceSpec, at_once: int, loads: Mapping[int, Sequence[Running]], dry: Sequence[int]
) -> list[tuple[SampleKey, int]]:
    """The moves that pay, each with the engine that the sample goes to.

    Args:
        spec: what steps and moves cost.
        at_once: samples that an engine decodes at a time.
        loads: running samples by engine.
        dry: engines without any; each gets samples of one other engine.
    """
    decided: list[tuple[SampleKey, int]] = []
    rest = {number: list(samples) for number, samples in loads.items() if samples}
    for target in dry:
        if not rest:
            break
        ends = {
            number: spec.end_s(work_of((r.held, r.left) for r in samples), at_once) for number, samples in rest.items()
        }
        source = max(ends, key=lambda number: (ends[number], -number))
        moved = _best_part(spec, at_once, rest[source])
        decided += [(sample.key, target) for sample in moved]
        rest[source] = [sample for sample in rest[source] if sample not in moved]
    return decided


def _best_part(spec: BalanceSpec, at_once: int, samples: list[Running]) -> list[Running]:
    """The samples of an engine that move to an empty one."""
    stay = sorted(samples, key=lambda sample: (-sample.left, sample.key))
    moved: list[Running] = []
    stays = work_of((r.held, r.left) for r in stay)
    goes, takes_s = work_of(()), 0.0
    ends_s = spec.end_s(stays, at_once)
    for sample in list(stay):
        if len(stay) == 1 or len(moved) == at_once:
            break
        cost_s = spec.move_cost_s(sample.held)
        without = [other for other in stay if other is not sample]
        stays_then = work_of((r.held, r.left) for r in without)
        goes_then = goes.and_one(sample.held, sample.left)
        then_s = max(spec.end_s(stays_then, at_once), spec.end_s(goes_then, at_once) + takes_s + cost_s)
        if ends_s - then_s <= cost_s:
            continue
        stay, goes, takes_s, ends_s = without, goes_then, takes_s + cost_s, then_s
        moved.append(sample)
    return moved
