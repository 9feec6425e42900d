"""The figures of a plan of groups, the same for `rlplan solve --json` and `rlplan show --json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...plans.schema.groups_plan import GroupsPlan


def summary(plan: GroupsPlan, out: Path) -> dict[str, Any]:
    """The figures of a plan of groups, for --json."""
    greedy = plan.predicted.algorithm_1
    return {
        "plan": str(out),
        "objective": plan.rules.objective,
        "status": plan.solver.status,
        "gap": plan.solver.gap,
        "universe": plan.solver.universe,
        "columns": plan.solver.columns,
        "simulated": plan.solver.simulated,
        "usd_per_hour": {
            "plan": plan.predicted.plan.usd_per_hour,
            "solo_d": plan.predicted.solo_d.usd_per_hour,
            "algorithm_1": greedy.usd_per_hour,
            "bound": plan.solver.bound_usd_per_hour,
            "fluid": plan.solver.fluid_usd_per_hour,
        },
        "usd_per_unit": {
            "plan": plan.predicted.plan.usd_per_unit,
            "solo_d": plan.predicted.solo_d.usd_per_unit,
            "algorithm_1": greedy.usd_per_unit,
            "bound": plan.solver.bound_usd_per_unit,
        },
        "fits": {"solo_d": plan.predicted.solo_d.fits, "algorithm_1": greedy.fits},
        "slo_attained": plan.predicted.plan.slo_attained,
        "groups": {key: sorted(group.jobs) for key, group in plan.groups.items()},
        "slowdown": {
            name: member.slowdown.mean for group in plan.groups.values() for name, member in group.jobs.items()
        },
        "moves": [move.model_dump() for move in plan.moves],
        "declined": plan.declined.model_dump() if plan.declined else None,
        "solved_at": plan.volatile.solved_at,
        "solve_s": plan.volatile.solve_s,
    }
