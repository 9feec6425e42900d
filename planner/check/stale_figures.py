"""Findings that only say that a plan's figures are of other decisions, or other inputs, than it has now. Where the edit
or the change is a finding itself, they are left out: whoever mends that has all figures made anew."""

from __future__ import annotations

from collections.abc import Sequence

from ...plans.check.finding import Fault

_STALE = ("decisions-edited", "input-changed")
_OF_OTHERS = {
    "capacity-contradicts-inputs": "predicted.",
    "nodes-do-not-add-up": "predicted.nodes",
    "price-does-not-add-up": "predicted.usd_per_hour",
    "lengths-beyond-cap": "predicted.lengths_tokens",
}
"""By rule, how the key of a figure begins that the rule holds against the decisions or the inputs."""
_MEMORY = ("train-memory", "host-memory")


def without_stale(found: Sequence[Fault]) -> list[Fault]:
    """The findings without those which only say that predicted figures belong to other decisions or inputs. A memory
    that does not hold is then named at the decision alone."""
    if not any(fault.rule in _STALE for fault in found):
        return list(found)
    decided = {fault.rule for fault in found if fault.rule in _MEMORY and fault.loc[0] == "job"}

    def left_out(fault: Fault) -> bool:
        begins = _OF_OTHERS.get(fault.rule)
        if begins is not None and fault.key.startswith(begins):
            return True
        return fault.loc[0] == "predicted" and fault.rule in decided

    return [fault for fault in found if not left_out(fault)]
