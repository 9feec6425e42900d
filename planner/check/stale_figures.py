"""Stale figures of a plan: figures that were predicted for other decisions or inputs. If the edit or the changed input
is a finding itself, findings on these figures are left out, since solving again predicts all figures anew."""

from __future__ import annotations

from collections.abc import Sequence

from ...plans.check.finding import Fault

_STALE = ("decisions-edited", "input-changed")
_STALE_KEYS = {
    "capacity-contradicts-inputs": "predicted.",
    "nodes-do-not-add-up": "predicted.nodes",
    "price-does-not-add-up": "predicted.usd_per_hour",
    "lengths-beyond-cap": "predicted.lengths_tokens",
}
"""By rule, the beginning of the keys of those figures that the rule compares with the decisions or the inputs."""
_MEMORY = ("train-memory", "host-memory")


def without_stale(faults: Sequence[Fault]) -> list[Fault]:
    """The faults, without those on stale figures; memory that is too small is then reported only at the decision."""
    if not any(fault.rule in _STALE for fault in faults):
        return list(faults)
    decided = {fault.rule for fault in faults if fault.rule in _MEMORY and fault.location[0] == "job"}

    def left_out(fault: Fault) -> bool:
        begins = _STALE_KEYS.get(fault.rule)
        if begins is not None and fault.key.startswith(begins):
            return True
        return fault.location[0] == "predicted" and fault.rule in decided

    return [fault for fault in faults if not left_out(fault)]
