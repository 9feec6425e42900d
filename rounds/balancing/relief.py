"""Which running samples move to an engine that has few left: those whose move saves more seconds than it takes.

A light engine offers itself to the engine that would end last. Of that one's samples, the longest first, each moves
whose move has both end sooner, taken together, by more than it takes to stop the sample, to send it and to prefill what
it has (`BalanceSpec.move_cost_s`). Where a step costs the same for one sequence as for many, one move, of the longest,
is worth as much as all; where each sequence costs, half of the samples move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..machines.events import SampleKey
from .balance_spec import BalanceSpec, Load, Longest, WorkShare


class Running(NamedTuple):
    """A running sample: the tokens that it holds, its prompt's included, and its share of its engine's work."""

    key: SampleKey
    held: int
    share: WorkShare


def moves(
    spec: BalanceSpec, longest: Longest, at_once: int, loads: Mapping[int, Sequence[Running]], light: Sequence[int]
) -> list[tuple[SampleKey, int]]:
    """The moves that pay, each with the engine that the sample goes to.

    Args:
        spec: what steps and moves cost.
        longest: how the longest of an engine's samples is told.
        at_once: samples that an engine decodes at a time.
        loads: running samples by engine.
        light: engines that take samples; each gets those of one other engine.
    """

    def end_s(samples: Sequence[Running]) -> float:
        return spec.end_s(Load(longest, (sample.share for sample in samples)).work(), at_once)

    decided: list[tuple[SampleKey, int]] = []
    rest = {number: list(samples) for number, samples in loads.items() if samples and number not in light}
    ends = {number: end_s(samples) for number, samples in rest.items()}
    for target in light:
        if not rest:
            break
        source = max(ends, key=lambda number: (ends[number], -number))
        moved = _best_part(spec, longest, at_once, rest[source], loads.get(target, ()))
        decided += [(sample.key, target) for sample in moved]
        rest[source] = [sample for sample in rest[source] if sample not in moved]
        ends[source] = end_s(rest[source])
    return decided


def _best_part(
    spec: BalanceSpec, longest: Longest, at_once: int, samples: Sequence[Running], there: Sequence[Running]
) -> list[Running]:
    """The samples of an engine that move to one that has those that are `there`."""
    stay = sorted(samples, key=lambda sample: (-sample.share.median, sample.key))
    moved: list[Running] = []
    goes, takes_s = Load(longest, (sample.share for sample in there)), 0.0
    ends_s = max(
        spec.end_s(Load(longest, (sample.share for sample in stay)).work(), at_once), spec.end_s(goes.work(), at_once)
    )
    for sample in list(stay):
        if len(stay) == 1 or len(there) + len(moved) >= at_once:
            break
        cost_s = spec.move_cost_s(sample.held)
        without = [other for other in stay if other is not sample]
        stays_s = spec.end_s(Load(longest, (other.share for other in without)).work(), at_once)
        goes_s = spec.end_s(goes.work_with(sample.share), at_once) + takes_s + cost_s
        if ends_s - max(stays_s, goes_s) <= cost_s:
            continue
        goes.add(sample.share)
        stay, takes_s, ends_s = without, takes_s + cost_s, max(stays_s, goes_s)
        moved.append(sample)
    return moved
