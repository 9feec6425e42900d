"""Plans of groups as plain data, from who is in which group; and random ones, consistent in themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from rlplan.plans.schema.groups_plan import GroupsPlan

PRICE = {"roll": 10.0, "train": 40.0}


def pinned(pool: str, unit: int, mean_s: float = 60.0) -> dict[str, Any]:
    """A phase on one unit."""
    return {"pool": pool, "units": [unit], "way": 0, "mean_s": mean_s, "switch_s": 1.0, "resume_s": None}


def member(slowdown: float = 1.1, p95: float = 1.2, slo: float = 1.5) -> dict[str, Any]:
    """A job of a group of one node of each pool; it keeps its bound if `p95` does."""
    return {
        "rollout": pinned("roll", 0),
        "train": pinned("train", 1, 30.0),
        "pace_s": 130.0,
        "tail_from": None,
        "tail_units": None,
        "slowdown": {"mean": slowdown, "p50": slowdown, "p95": p95, "slo": slo, "keeps": p95 <= slo, "alone_s": 90.0},
    }


def group(jobs: Mapping[str, Mapping[str, Any]] | Sequence[str], roll_nodes: int = 1) -> dict[str, Any]:
    """A group on `roll_nodes` nodes to decode and one to train; `jobs`: members by name, or names of usual members."""
    members = dict(jobs) if isinstance(jobs, Mapping) else {name: member() for name in jobs}
    train = member()["train"] | {"units": [roll_nodes]}
    node = {"slots": 1, "resident_bytes": 1e9, "host_memory_bytes": 10**12, "busy": 0.5}
    span = {"job": next(iter(members)), "phase": "rollout", "units": [0], "begin_s": 0.0, "end_s": 60.0}
    return {
        "nodes": [*({"pool": "roll", **node} for _ in range(roll_nodes)), {"pool": "train", **node}],
        "jobs": {name: {**fields, "train": train} for name, fields in members.items()},
        "usd_per_hour": PRICE["roll"] * roll_nodes + PRICE["train"],
        "timeline": {"period_s": 90.0, "repeats": True, "span_s": 90.0, "spans": [span]},
        "why": {},
    }


def groups_plan(groups: Mapping[str, Mapping[str, Any]], **changes: Any) -> GroupsPlan:
    """The plan of these groups; `changes`: other values of top-level keys."""
    usd = sum(each["usd_per_hour"] for each in groups.values())
    figures = {"usd_per_hour": usd, "usd_per_unit": usd / 250, "slo_attained": 1.0, "fits": True}
    file = {"path": "workload.yaml", "sha256": "1" * 64}
    return GroupsPlan.model_validate(
        {
            "rlplan_groups": 1,
            "inputs": {
                "workload": file,
                "cluster": {"path": "cluster.yaml", "sha256": "2" * 64},
                "sources": {},
                "previous": None,
            },
            "solver": {
                "name": "HiGHS 1.15.1",
                "status": "optimal",
                "bound_usd_per_hour": usd,
                "bound_usd_per_unit": None,
                "gap": 0.0,
                "universe": "all groups",
                "columns": 3,
                "simulated": 5,
                "fluid_usd_per_hour": None,
            },
            "decisions_sha256": "0" * 64,
            "rules": {},
            "groups": dict(groups),
            "moves": [],
            "declined": None,
            "predicted": {"plan": figures, "solo_d": figures, "algorithm_1": figures},
            "volatile": {"solved_at": "2026-01-02T03:04:05Z", "solve_s": 1.5, "rlplan": "0.1.0"},
        }
        | changes
    )


@st.composite
def groups_plans(draw: st.DrawFn) -> GroupsPlan:
    """Up to eight of a dozen jobs, in groups; slowdowns, bounds, nodes and prices at random."""
    jobs = draw(st.lists(st.sampled_from([f"job-{i}" for i in range(12)]), min_size=1, max_size=8, unique=True))
    ids = draw(st.lists(st.integers(0, 999), min_size=len(jobs), max_size=len(jobs), unique=True))
    placed: dict[str, dict[str, Any]] = {}
    ratio = st.floats(0.5, 5.0)
    for name in jobs:
        key = f"g{draw(st.sampled_from(ids))}"
        placed.setdefault(key, {})[name] = member(draw(ratio), draw(ratio), draw(st.floats(1.0, 4.0)))
    groups = {key: group(members, draw(st.integers(1, 3))) for key, members in placed.items()}
    usd = draw(st.floats(0, 1e6))
    figures = {"usd_per_hour": usd, "usd_per_unit": draw(st.floats(0, 10)), "slo_attained": 1.0, "fits": True}
    moves = [
        {
            "job": name, "from_group": "g0", "to_group": key, "price_usd": draw(ratio), "price_s": draw(ratio),
            "together": 1, "saves_usd_per_hour": draw(st.floats(-9, 9)), "needed": draw(st.booleans()),
        }
        for key, members in placed.items() for name in members if draw(st.booleans())
    ]  # fmt: skip
    return groups_plan(groups, moves=moves, predicted={name: figures for name in ("plan", "solo_d", "algorithm_1")})
