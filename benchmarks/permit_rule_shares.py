"""The share of random co-execution groups that keep their bounds under each permit rule.

    python -m benchmarks.permit_rule_shares [--groups N] [--seed N] [--json]

A group has 2-5 jobs, drawn uniformly from the Top-10 production jobs (RollMux), with bounds on slowdown
uniform in (1, 2). It has one training node, and between one rollout node and one for each job. Warm switches take 1.5 s
(rollout) and 4.5 s (train). Groups that no schedule can run (slowdowns.cannot_hold) are left out. In the variants
`pause_train` and `pause`, multi_rate may pause training turns (for 2 s each), or training and rollout turns (6 s each).

JSON: {"groups": N, "could_hold": N, "share": {VARIANT: share}, "by_jobs": {VARIANT: {jobs: share}}, "spread": {VARIANT:
share with 15 % spread}}.
"""

from __future__ import annotations

import json
from dataclasses import replace

import click
import numpy as np

from rlplan.planner.groups.inputs.group_model import Group, GroupJob, PhaseWay, Pin, Rules
from rlplan.planner.groups.simulate.slowdowns import cannot_hold, feasible_many

TOP_10 = [(134, 113), (310, 120), (580, 241), (238, 197), (121, 51), (496, 180), (267, 271), (888, 559), (80, 77)]
TOP_10 += [(262, 87)]
VARIANTS = {
    "round_robin": ("round_robin", None, None),
    "first_come": ("first_come", None, None),
    "multi_rate": ("multi_rate", None, None),
    "pause_train": ("multi_rate", None, 2.0),
    "pause": ("multi_rate", 6.0, 2.0),
}


def random_groups(count: int, seed: int, spread: float) -> tuple[list[Group], dict[str, GroupJob]]:
    """`count` groups and all their jobs; `spread`: standard deviation of the logarithm of phase seconds."""
    rng = np.random.default_rng(seed)
    drawn: tuple[tuple[float, float], ...] = ()
    if spread:
        factors = np.exp(rng.normal(0, spread, (200, 2)))
        drawn = tuple((float(a), float(b)) for a, b in factors / factors.mean(0))
    groups, jobs = [], {}
    for number in range(count):
        size = int(rng.integers(2, 6))
        nodes = int(rng.integers(1, size + 1))
        on = [*range(nodes), *(int(node) for node in rng.integers(0, nodes, size - nodes))]
        pins = []
        for j in range(size):
            name = f"{number:05d}-{j}"
            rollout_s, train_s = TOP_10[int(rng.integers(len(TOP_10)))]
            ways = (PhaseWay("rollout", 1, 1, rollout_s, 0.0, 1.5),), (PhaseWay("train", 1, 1, train_s, 0.0, 4.5),)
            jobs[name] = GroupJob(name, float(rng.uniform(1, 2)), *ways, spread=drawn)
            pins.append(Pin(name, 0, (on[j],), 0, (nodes,)))
        groups.append(Group(("rollout",) * nodes + ("train",), tuple(pins)))
    return groups, jobs


def admitted(groups: list[Group], jobs: dict[str, GroupJob], variant: str) -> list[bool]:
    """For each group, whether all its bounds hold under the variant."""
    permit_rule, rollout_s, train_s = VARIANTS[variant]
    pausable = {
        name: replace(
            job,
            rollout=(replace(job.rollout[0], resume_s=rollout_s),),
            train=(replace(job.train[0], resume_s=train_s),),
        )
        for name, job in jobs.items()
    }
    return feasible_many(groups, pausable, Rules(permit_rule=permit_rule))


def measure(count: int, seed: int) -> dict[str, object]:
    """The JSON result (see the module's docstring)."""
    groups, jobs = random_groups(count, seed, 0.0)
    could = [group for group in groups if not cannot_hold(group, jobs, Rules())]
    share, by_jobs = {}, {}
    for variant in VARIANTS:
        verdicts = np.array(admitted(could, jobs, variant))
        share[variant] = round(float(verdicts.mean()), 4)
        sizes = np.array([len(group.pins) for group in could])
        by_jobs[variant] = {str(n): round(float(verdicts[sizes == n].mean()), 4) for n in sorted(set(sizes.tolist()))}
    groups, jobs = random_groups(count // 4, seed, 0.15)
    few = [group for group in groups if not cannot_hold(group, jobs, Rules())]
    spread = {variant: round(float(np.mean(admitted(few, jobs, variant))), 4) for variant in VARIANTS}
    return {"groups": count, "could_hold": len(could), "share": share, "by_jobs": by_jobs, "spread": spread}


@click.command()
@click.option("--groups", "count", default=4000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def main(count: int, seed: int, as_json: bool) -> None:
    """Share of random groups that each permit rule can run."""
    result = measure(count, seed)
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(f"{result['could_hold']} of {count} groups could hold; share of them within all bounds, by jobs:")
    for variant in VARIANTS:
        by = "  ".join(f"{n}: {share:.2f}" for n, share in result["by_jobs"][variant].items())  # type: ignore[index]
        spread = result["spread"][variant]  # type: ignore[index]
        click.echo(f"{variant:12s} {result['share'][variant]:.3f}   {by}   with spread: {spread:.3f}")  # type: ignore[index]


if __name__ == "__main__":
    main()
