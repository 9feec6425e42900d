"""Why the plan is as it is: for each decision its next best alternative, what that costs, and in which phase.

The alternative to a decision is the best schedule that differs in it, all else being free: what one would do instead.
Alternatives that lost early were simulated for a few rounds only; their figures say "about".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from ...plans.facts.critical_path import CriticalPath
from ...plans.phrases.phase_names import PHASE_NAMES
from ...plans.phrases.why_line import TIE_PERCENT, Alternative
from ...plans.schema.sections.layouts import UpdateLayout
from ...rounds.timeouts import TimeoutSpec
from ..choose.candidate_search import ON_REQUEST, Search
from ..choose.candidates import LongKey, ShortKey
from ..choose.cycle_cost import Cycle, make_cycle
from ..costs.phase_costs import RewardCost
from ..simulate.columns.round_log import mean
from .cycle_parts import parts_of
from .holdout_rounds import Unseen


def explain(search: Search, cycle: Cycle, baseline: Cycle, unseen: Unseen, path: CriticalPath) -> dict[str, str]:
    """Text by dotted key of the plan's job section; `path`: of the predicted step.

    What is told of the schedule itself is predicted (`unseen`); alternatives are compared on the choice's own rounds.
    """
    why: dict[str, str] = {"bias.mode": _mode(search, cycle, baseline, unseen)}
    mode = cycle.short.law.mode
    cycles = [*search.cycles(), *_other_updates(search, cycle)]
    own = [c for c in cycles if c.short.law.mode == mode and not c.violations(search.limits)]
    decided = decisions(search, mode, cycle.long is not None)
    for key, value, text in decided:
        alternative = _alternative(search, own, cycle, value)
        if alternative is not None:
            kept = all(rest(alternative) == rest(cycle) for other, rest, _ in decided if other != key)
            why[key] = _compare(search, cycle, alternative, text, "kept" if kept else "chosen anew")
        elif len({value(c) for c in cycles if c.short.law.mode == mode}) > 1:
            why[key] = f"{text(cycle)}: every other choice breaks a limit of the plan"
    if (timeouts := _timeouts(search.setting.reward)) is not None:
        why["reward.adaptive_timeout"] = timeouts
    for part in parts_of(search, cycle):
        saved = search.space.kept_together.get(part.layout)
        if saved is not None:
            kind = "short" if isinstance(part.key, ShortKey) else "long"
            why[f"rounds.{kind}.rollout.prefix"] = (
                f"samples kept with their prompts, which saves {100 * saved:.1f}% of a plain rollout"
            )
    if unseen.cycle.long is not None:
        why["rounds"] = _shares(unseen)
    for kind, column in (("short", cycle.short), ("long", cycle.long)):
        measured = search.space.decode[column.layout].measured_engines if column is not None else 0
        if column is not None and measured and (kind == "short" or column.layout != cycle.short.layout):
            why[f"rounds.{kind}.rollout.costs"] = (
                f"{column.layout} is priced as {measured} engine{'s' * (measured > 1)} of tp {column.layout.tp} "
                f"measured at once, of the profile's entries the nearest"
            )
    why["step"] = path.text()
    for number, refusal in enumerate(search.space.refused):
        why[f"refused.{number}"] = refusal
    return why


def _other_updates(search: Search, cycle: Cycle) -> list[Cycle]:
    """The chosen schedule with each other update of either kind of round: the search keeps only the best of them."""
    trains = range(len(search.space.train))
    pairs = [(m, cycle.long_train if cycle.long else m) for m in trains]
    pairs += [(cycle.train, w) for w in trains if cycle.long]
    return [make_cycle(cycle.short, cycle.long, m, w, search.limits) for m, w in pairs]


def _copies(count: int) -> str:
    return f"{count} cop{'y' if count == 1 else 'ies'} at once"


Value = Callable[[Cycle], Any]
Text = Callable[[Cycle], str]


def decisions(search: Search, mode: str, deferring: bool) -> list[tuple[str, Value, Text]]:
    """(plan key, what it is in a cycle, how to say it)."""
    trains = search.space.train

    def short(c: Cycle) -> ShortKey:
        return cast(ShortKey, c.short.key)

    def of_long(value: Callable[[LongKey], Any], text: Callable[[LongKey], str]) -> tuple[Value, Text]:
        # A race over samples alone has no long rounds, and is an alternative to one that has.
        def key(c: Cycle) -> LongKey | None:
            return cast(LongKey, c.long.key) if c.long else None

        return (
            lambda c: None if (found := key(c)) is None else value(found),
            lambda c: "no long rounds" if (found := key(c)) is None else text(found),
        )

    found: list[tuple[str, Value, Text]] = []
    if mode != "sync":
        found.append(
            ("rounds.short.issue.prompts", lambda c: short(c).prompts, lambda c: f"{short(c).prompts} prompts issued")
        )
    if mode == "race":
        found.append(
            ("rounds.short.issue.samples", lambda c: short(c).samples, lambda c: f"{short(c).samples} samples a prompt")
        )
    if mode == "exact":
        found.append(
            (
                "rounds.short.cutoff_tokens",
                lambda c: short(c).cutoff_tokens,
                lambda c: f"cutoff {short(c).cutoff_tokens} tokens",
            )
        )
    if search.space.drafted:
        found.append(
            (
                "rounds.short.rollout.drafts",
                lambda c: short(c).draft_tokens,
                lambda c: f"short rounds {drafts_text(short(c).draft_tokens)}",
            )
        )
    if mode == "predict":
        found.append(
            (
                "rounds.short.long_share",
                lambda c: short(c).long_share,
                lambda c: f"the {100 * short(c).long_share:g}% of the prompts with the longest history in long rounds",
            )
        )
    found.append(("rounds.short.rollout", lambda c: c.short.layout, lambda c: f"short rounds on {c.short.layout}"))
    found.append(
        (
            "rounds.short.train",
            lambda c: c.train,
            lambda c: f"short rounds train by {train_text(trains[c.train].layout)}",
        )
    )
    if deferring:
        found.append(
            (
                "rounds.long.rollout",
                *of_long(lambda key: key.layout, lambda key: f"long rounds on {key.layout}"),
            )
        )
        found.append(
            (
                "rounds.long.train",
                lambda c: c.long_train,
                lambda c: f"long rounds train by {train_text(trains[c.long_train].layout)}",
            )
        )
        if search.space.drafted:
            found.append(
                (
                    "rounds.long.rollout.drafts",
                    *of_long(lambda key: key.draft_tokens, lambda key: f"long rounds {drafts_text(key.draft_tokens)}"),
                )
            )
        if any(key.hand_over for key in search.space.long):
            found.append(
                (
                    "rounds.long.hand_over",
                    *of_long(lambda key: key.hand_over, lambda key: f"long rounds {hand_over_text(key)}"),
                )
            )
        if mode == "exact":
            found.append(
                ("rounds.long.issue.copies", *of_long(lambda key: key.copies, lambda key: _copies(key.copies)))
            )
    return found


def tie_text(search: Search, fastest: Cycle, chosen: Cycle, above: float, tolerance: float) -> str | None:
    """In what the proven best schedule differs from the chosen one, which is simpler and as good as far as is known
    (ties.py), costing the share `above` more; None if they are one."""
    mode = fastest.short.law.mode
    both = chosen.long is not None and fastest.long is not None
    if chosen.short.law.mode != mode:
        words = [f"mode {mode}"]
    else:
        words = [text(fastest) for _, value, text in decisions(search, mode, both) if value(chosen) != value(fastest)]
    if not words:
        return None
    unit = "cheaper" if search.limits.objective == "usd" else "faster"
    return (
        f"{', '.join(words)} would be {100 * above:.1f}% {unit}, within the costs' error; the simplest within "
        f"{100 * tolerance:.1f}% is planned"
    )


def drafts_text(tokens: int) -> str:
    """Drafts in words."""
    return f"with drafts of {tokens} tokens" if tokens else "without drafts"


def hand_over_text(key: LongKey) -> str:
    """A hand-over in words."""
    if not key.hand_over:
        return "keep all engines to their end"
    return f"free {key.freed_engines} of {key.layout.engines} engines at {100 * key.hand_over:g}% of the samples"


def train_text(layout: UpdateLayout) -> str:
    """An update layout in words; sizes of 1 are not told."""
    sizes = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    words += [f"recompute {layout.recompute}"] * (layout.recompute != "none") + ["offload"] * layout.offload
    return ", ".join([*words, f"micro-batches of {layout.micro_batch_tokens} tokens"])


def _alternative(search: Search, cycles: list[Cycle], chosen: Cycle, value: Value) -> Cycle | None:
    others = [c for c in cycles if value(c) != value(chosen)]
    # Early losers serve when there is nothing else: their few rounds are the more flattering, the fewer they are.
    solid = [c for c in others if c.short.rounds >= search.passes[-1].short_rounds]
    return min(solid or others, key=lambda c: (c.cost(search.limits), c.name), default=None)


def _compare(search: Search, chosen: Cycle, other: Cycle, text: Text, rest: str) -> str:
    # On as many rounds as both have, which are on the same luck.
    short = min(chosen.short.rounds, other.short.rounds)
    long = min(c.long.rounds if c.long else 1 for c in (chosen, other))
    ours = search.phase_seconds(chosen, short, long)
    theirs = search.phase_seconds(other, short, long)
    total = sum(ours.values())
    price = other.cost(search.limits) / other.seconds_per_sample(search.limits.group_size)
    price /= chosen.cost(search.limits) / chosen.seconds_per_sample(search.limits.group_size)
    change = 100 * (price * sum(theirs.values()) / total - 1)
    moved = max(ours, key=lambda phase: abs(theirs[phase] - ours[phase]))
    where = f"{PHASE_NAMES[moved]} {100 * (theirs[moved] - ours[moved]) / total:+.1f}%"
    nodes, instead = other.nodes(search.limits), chosen.nodes(search.limits)
    if search.limits.objective == "usd" and nodes != instead:
        # A schedule that is as fast costs more for the nodes that it takes, which no phase tells.
        where = f"takes {nodes} node{'s' * (nodes != 1)} instead of {instead}"
    tie = abs(change) < TIE_PERCENT
    alternative = Alternative(
        chosen=text(chosen),
        other=text(other),
        percent=None if tie else change,
        about=short < search.passes[-1].short_rounds,
        unit="cost" if search.limits.objective == "usd" else "time",
        where=where,
        rest="" if tie else rest,
    )
    return alternative.text()


def _mode(search: Search, cycle: Cycle, baseline: Cycle, unseen: Unseen) -> str:
    size = search.limits.group_size
    mine, base = unseen.cycle.seconds_per_sample(size), unseen.baseline.seconds_per_sample(size)
    ratio, error = unseen.search.measured_ratio(unseen.cycle)
    parts = [f"{base / mine:.2f}x plain synchronous rounds ({mine * 1e3:.4g} against {base * 1e3:.4g} ms per sample)"]
    if cycle.short.law.mode != "sync":
        parts.append(f"length ratio {ratio:.3f} +- {error:.3f}")
    if cycle.short.law.mode == "predict":
        parts.append(_plain_epoch(search, cycle))
    for mode in ("exact", "predict", "defer", "race"):
        if mode == cycle.short.law.mode:
            continue
        others = [c for c in search.cycles() if c.short.law.mode == mode]
        best = min(others, key=lambda c: (c.cost(search.limits), c.name), default=None)
        if best is not None:
            gain = baseline.seconds_per_sample(size) / best.seconds_per_sample(size)
            bias = search.measured_ratio(best)[0]
            when = f" from the second epoch on (planned only by --mode {mode})" if mode in ON_REQUEST else ""
            parts.append(f"mode {mode} at its fastest would be about {gain:.2f}x{when}, at length ratio {bias:.2f}")
    return "; ".join(parts)


def _shares(unseen: Unseen) -> str:
    short, long = parts_of(unseen.search, unseen.cycle)
    part = long.share * mean(long.step_s())
    part /= part + short.share * mean(short.step_s())
    return f"long rounds are {100 * long.share:.1f}% of the steps and {100 * part:.1f}% of the time"


def _plain_epoch(search: Search, cycle: Cycle) -> str:
    """What a reader must know before taking the speed of `predict` for that of a run."""
    key = cast(ShortKey, cycle.short.key)
    plain = search.short[ShortKey("sync", key.prompts, key.samples, None, key.layout)].log
    seconds = mean(plain.step_s(search.space.train[cycle.train])) / (mean(plain.groups) * search.limits.group_size)
    return (
        f"from the second epoch on, and as if lengths stood still between epochs; the first has no history and is "
        f"plain, about {seconds * 1e3:.4g} ms per sample"
    )


def _timeouts(reward: RewardCost) -> str | None:
    """What deadlines that adapt are worth to the reward workers; None where there are none, or nothing to tell."""
    if reward.executions is None or not reward.timeout.adapts:
        return None
    fixed = replace(reward, timeout=TimeoutSpec(reward.timeout.max_s))
    return (
        f"a sample takes a reward worker {reward.mean_s():.3g} s in the mean once its prompt was seen, "
        f"{fixed.mean_s():.3g} s if every prompt kept the longest deadline; right answers slower than a prompt's "
        "earlier ones may be judged wrong for it, which the run counts"
    )
