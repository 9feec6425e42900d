"""What a plan says about its groups."""

from __future__ import annotations

from rlplan.planner.groups.inputs.group_model import Group, GroupJob, NodeType, PhaseWay, Pin, Rules
from rlplan.planner.groups.inputs.groups_state import GroupsState
from rlplan.planner.groups.simulate.slowdowns import slowdowns
from rlplan.planner.groups.simulate.steady_state import steady_state
from rlplan.planner.groups.write.group_why import explain

NODE_TYPES = {"roll": NodeType("roll", 10.0, 1e12), "train": NodeType("train", 40.0, 1e12)}
RULES = Rules()


def job(name: str, rollout_s: float, train_s: float, slo: float) -> GroupJob:
    return GroupJob(name, slo, (PhaseWay("roll", 1, 1, rollout_s, 1e9),), (PhaseWay("train", 1, 1, train_s, 1e9),))


def why(state: GroupsState, key: str = "g1") -> dict[str, str]:
    group = state.groups[key]
    got = slowdowns(group, state.jobs, RULES)
    return explain(key, state, got, steady_state(group, state.jobs, RULES, {}), NODE_TYPES, RULES)


def test_the_plan_says_that_round_robin_would_slow_the_short_job_five_times_and_its_own_policy_does_not():
    """RollMux, arXiv 2512.11306: two rollout nodes, one training node, 400+100 s and 50+50 s."""
    jobs = {"long": job("long", 400.0, 100.0, 1.5), "short": job("short", 50.0, 50.0, 1.5)}
    group = Group(("roll", "roll", "train"), (Pin("long", 0, (0,), 0, (2,)), Pin("short", 0, (1,), 0, (2,))))
    state = GroupsState(jobs, {"g1": group})
    assert slowdowns(group, jobs, RULES)["short"].mean <= 1.3
    text = why(state)
    assert text["policy"].startswith("multi_rate: round_robin slows short 5.00x, which breaks its bound of 1.50")
    assert "for 60.00 USD an hour; each alone they take 100.00, 1.67 times as much" in text["cost"]
    assert "long on nodes of its own instead: +40.00 USD an hour" in text["next_best"]
    assert "critical cycle: " in text["pace"] and "of long" in text["pace"]
    assert "nearest to its bound" in text["slack"]


def test_a_policy_that_would_do_as_well_is_said_to():
    jobs = {"long": job("long", 400.0, 100.0, 1.02), "short": job("short", 50.0, 50.0, 1.3)}
    group = Group(("roll", "roll", "train"), (Pin("long", 0, (0,), 0, (2,)), Pin("short", 0, (1,), 0, (2,))))
    text = why(GroupsState(jobs, {"g1": group}))["policy"]
    assert text.endswith(
        "; first_come also keeps all bounds here and slows every job the same; multi_rate is the workload's choice"
    )


def test_a_job_that_is_alone_says_whom_it_would_slow_elsewhere_and_how_much():
    jobs = {name: job(name, 20.0, 200.0, 1.1) for name in ("x", "y")}
    alone = {f"g{i}": Group(("roll", "train"), (Pin(n, 0, (0,), 0, (1,)),)) for i, n in enumerate(("x", "y"), 1)}
    text = why(GroupsState(jobs, alone))
    assert "has these nodes to itself: 50.00 USD" in text["cost"]
    assert text["next_best"].startswith("x in g2 would cost 0.00 USD an hour instead of 50.00, and slow ")
    assert "1.82x of at most 1.10x" in text["next_best"]
    assert "policy" not in text and "pace" not in text
