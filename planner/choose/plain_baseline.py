"""The baseline of a plan: plain synchronous rounds on the nodes that the plan takes, under the limits that it
keeps.

Minimising USD, a plan may take other nodes than the plain rounds that cost least; the two then differ by hardware and
not by schedule. So the baseline is the fastest plain schedule on at most the plan's nodes, and what the objective alone
would have chosen of plain rounds is told beside it.
"""

from __future__ import annotations

from dataclasses import replace

from ...plans.yaml.errors import Infeasible
from .candidate_search import Search, is_plain
from .cycle_cost import Cycle
from .plan_limits import Limits


def baseline_of(search: Search, chosen: Cycle) -> Cycle:
    """The fastest plain synchronous schedule on at most as many nodes as `chosen` takes, and scored as it is, with a
    last pass's rounds.

    Of those that fit (host memory, cores for rewards) and keep the SLO, if any does; else of those that fit, and
    `keeps_slo` says so. A plan that is such a schedule is its own baseline.
    """
    if is_plain(chosen):
        return chosen
    limits, nodes, rounds = search.limits, chosen.taken(search.limits), search.passes[-1].short_rounds
    while True:
        fitting = [c for c in _that_fit(search) if c.short.reward == chosen.short.reward]
        if not fitting:
            scored = [_scored_as(search, cycle, chosen) for cycle in _that_fit(search)]
            fitting = [c for c in scored if _fits(search, c)] or scored
        # An edited plan may take fewer nodes than any update of the search: then plain rounds take what they take.
        plain = [c for c in fitting if c.taken(limits).within(nodes)] or fitting
        if not plain:
            raise Infeasible("no plain rounds, with which a plan is compared, fit into the pool's host memory")
        best = min(
            [c for c in plain if keeps_slo(c, limits)] or plain,
            key=lambda c: (c.seconds_per_sample(limits.group_size), c.name),
        )
        if best.short.rounds >= rounds:
            return best
        search.simulate(best, rounds, 0)


def _scored_as(search: Search, plain: Cycle, chosen: Cycle) -> Cycle:
    """A plain schedule with the reward workers and deadlines of `chosen`."""
    key = plain.short.key._replace(reward=chosen.short.reward)
    return search.simulate(replace(plain, short=replace(plain.short, key=key)), search.passes[0].short_rounds, 0)


def keeps_slo(cycle: Cycle, limits: Limits) -> bool:
    """Whether at least 95 % of the cycle's steps keep slo.step_p95_s; True without an SLO."""
    return "slo" not in cycle.violations(limits)


def baseline_text(search: Search, baseline: Cycle) -> str | None:
    """A caution on the baseline: that it breaks the SLO, or that other plain rounds, on another number of nodes, cost
    fewer USD. None without a caution."""
    limits, said = search.limits, []
    if not keeps_slo(baseline, limits):
        said.append("no plain rounds on these nodes keep slo.step_p95_s; the fastest of them are compared")
    cheapest = min(_that_fit(search), key=lambda c: (c.cost(limits), c.name))
    if limits.objective == "usd" and cheapest.nodes(limits) != baseline.nodes(limits):
        size = limits.group_size
        seconds = cheapest.seconds_per_sample(size) / baseline.seconds_per_sample(size)
        usd = cheapest.usd_per_sample(limits) / baseline.usd_per_sample(limits)
        breaks = "" if keeps_slo(cheapest, limits) else ", and break slo.step_p95_s"
        said.append(
            f"compared on {_nodes(baseline, limits)}, as the plan takes; plain rounds cost least on "
            f"{_nodes(cheapest, limits)}, where a sample takes {seconds:.2f} times the seconds and {usd:.2f} times the "
            f"USD{breaks}"
        )
    return "; ".join(said) or None


def _that_fit(search: Search) -> list[Cycle]:
    return [c for c in search.plain_cycles() if _fits(search, c)]


def _fits(search: Search, cycle: Cycle) -> bool:
    return not {"memory", "cores"} & set(cycle.violations(search.limits))


def _nodes(cycle: Cycle, limits: Limits) -> str:
    count = cycle.nodes(limits)
    return f"{count} node{'s' * (count != 1)}"
