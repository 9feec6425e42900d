"""What over-sampling dropped, by the dumps of a run: how many groups, of which prompts, and what that did to lengths.

What is certain:
- slime's data source numbers the groups that it gives out, 0, 1, 2, ... A number that is in no dump of consecutive
  rollouts, between the first and the last number that is, was given out and not trained. Those after the last one
  are not known. With partial rollout a group may still wait, so only numbers below those of the last rollout count.
- A prompt that was trained k times was given out at least k - 1 times before, and so was every other prompt, if each
  pass over the data gives out each prompt once. A prompt that was trained less often was dropped. (A prompt that
  stands in the data twice is none: a few prompts must agree on k.)

What is estimated: slime trains the groups that end first. If a group ends with its longest response, then a dropped
group's longest response is longer than that of every trained group of its step. These censored lengths and those of
the trained groups are fitted by a log-normal law (EM), and a dropped group is taken to have its mean beyond that
limit. The two ends of the range are no law: all dropped groups just at the limit, and all at the cap.

Dynamic sampling drops groups, too, for their rewards. Its counts are in slime's log; without the log, where all
trained groups have rewards that differ, the two cannot be told apart, and no ratio is stated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from statistics import NormalDist
from typing import Any

from .imported_run import ImportedRun
from .sample_dump import DumpedSample

_FEWEST = 20
"""Groups from which on something is read off them: a filter, a law of lengths."""
_AGREEING, _AGREEING_SHARE = 3, 0.02
"""Prompts that must have been trained as often before it counts as passes over the data."""
_GRID = [(k + 0.5) / 40 for k in range(40)]
_RATIO = ("length_ratio", "length_ratio_low", "length_ratio_high", "unconditioned_mean_tokens")
_BARS = 24
_LISTED = 200


@dataclass(frozen=True)
class _Group:
    """A trained group: tokens of its longest response and their mean; None without lengths."""

    prompt: str
    text: str
    number: int | None
    longest: int | None
    mean: float | None
    rewards: tuple[float, ...]


@dataclass
class _Step:
    """A step's trained groups, and the numbers that were given out for it and never trained."""

    groups: list[_Group]
    dropped: list[int]
    limits: list[int]  # by dropped group the longest response of those that were trained
    filtered: int = 0

    @property
    def limit(self) -> int | None:
        """Tokens of the longest trained response; None without lengths."""
        return max((g.longest for g in self.groups if g.longest is not None), default=None)


def audit_dumps(run: ImportedRun, rows: int | None = None, cap_tokens: int | None = None) -> dict[str, Any]:
    """What the dumps of a run say, JSON-ready; None where they do not say. `rows`: of the data set, if known.

    `prompts_issued`, `prompts_trained`, `prompts_dropped` count groups (a prompt counts once for each pass);
    `dropped` names prompts of which passes were dropped, `dropped_groups` the groups whose numbers are missing;
    `notes` say why a figure is None, and on what it rests.
    """
    steps = _steps(run.samples)
    groups = [group for step in steps.values() for group in step.groups]
    notes: list[str] = []
    planned = any(sample.long_round is not None for sample in run.samples)
    numbered = not planned and all(group.number is not None for group in groups)
    partial = numbered and _find_gaps(steps)
    issued = _issued(steps) if numbered else None
    dropped = sum(len(step.dropped) for step in steps.values()) if numbered else None
    filtered = _filtered(run, steps) if numbered else None
    named, named_times = _named(groups, _passes(groups, steps, rows, None if partial else issued), rows)
    if len(_runs_of(steps)) > 1:
        notes.append("dumps of some steps are missing: what they trained is not known, and prompts are not named")
    if planned:
        notes.append("rounds of a plan trained these: prompts that a round does not train wait for a later one")
    elif not numbered:
        notes.append(
            f"{run.framework}'s dumps do not number what was given out: only prompts trained less often show, and not "
            "whether over-sampling or a filter of groups dropped them"
        )
    if partial:
        notes.append("partial rollout: numbers of the last rollouts may still be trained, and are not counted")
    suspected = numbered and filtered is None and _all_differ(groups)
    if suspected:
        notes.append(
            "in every trained group rewards differ, so dynamic sampling may have dropped groups, too; its counts are "
            "in slime's log: name it beside the dumps"
        )
    over_sampled = dropped if not numbered else max(0, (dropped or 0) - (filtered or 0))
    ratio = _Ratio(steps, cap_tokens or _cap(run.samples))
    if not numbered or partial or suspected:
        stated: dict[str, Any] = dict.fromkeys(_RATIO)
        notes.append("the length ratio is not known: which groups were dropped for their length cannot be told")
    else:
        stated = ratio.stated()
        notes += ratio.notes
    lengths = [group.mean for group in groups if group.mean is not None]
    return {
        "framework": run.framework,
        "steps": len(steps),
        "prompts_issued": issued,
        "prompts_trained": len(groups),
        "prompts_dropped": over_sampled if numbered else named_times,
        "prompts_filtered": filtered,
        "at_least": not numbered or partial,
        "dropped": named[:_LISTED],
        "dropped_groups": [
            {"step": number, "group": group, "longest_at_least": limit}
            for number, step in steps.items()
            for group, limit in zip_longest(step.dropped, step.limits)
        ],
        **stated,
        "trained_mean_tokens": statistics.fmean(lengths) if lengths else None,
        "whom": _whom(groups, named),
        "by_step": {
            "step": list(steps),
            "trained": [len(step.groups) for step in steps.values()],
            "dropped": [len(step.dropped) for step in steps.values()],
            "filtered": [step.filtered for step in steps.values()],
            "limit_tokens": [step.limit for step in steps.values()],
        },
        "longest": ratio.bars() if stated["length_ratio"] is not None else _bars(groups, {}),
        "notes": notes,
    }


def _steps(samples: Sequence[DumpedSample]) -> dict[int, _Step]:
    found: dict[int, dict[str, list[DumpedSample]]] = {}
    for sample in samples:
        found.setdefault(sample.step, {}).setdefault(sample.group, []).append(sample)
    steps = {}
    for number, by_group in sorted(found.items()):
        groups = []
        for rows in by_group.values():
            tokens = [row.tokens for row in rows if row.tokens is not None]
            rewards = tuple(row.reward for row in rows if row.reward is not None)
            whole = len(tokens) == len(rows)
            groups.append(
                _Group(
                    rows[0].prompt, rows[0].text, rows[0].group_number, max(tokens) if whole else None,
                    statistics.fmean(tokens) if whole else None, rewards if len(rewards) == len(rows) else (),
                )
            )  # fmt: skip
        steps[number] = _Step(groups, [], [])
    return steps


# -- numbers that are missing --------------------------------------------------------------------------------------


def _runs_of(steps: Mapping[int, _Step]) -> list[list[int]]:
    """Consecutive steps; what a missing dump trained is not known."""
    parts: list[list[int]] = []
    for number in steps:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts


def _numbers(step: _Step) -> list[int]:
    return [group.number for group in step.groups if group.number is not None]


def _span(steps: Mapping[int, _Step], part: list[int]) -> tuple[int, int]:
    """First and last number that consecutive steps were surely given; a run's first rollout begins at 0."""
    numbers = [number for each in part for number in _numbers(steps[each])]
    return 0 if part[0] == 0 else min(numbers), max(numbers)


def _find_gaps(steps: Mapping[int, _Step]) -> bool:
    """Put the numbers that are missing to the steps that they were given out for; whether rollouts are partial."""
    partial = any(
        min(_numbers(steps[later])) < max(_numbers(steps[earlier]))
        for part in _runs_of(steps)
        for earlier, later in pairwise(part)
    )
    for part in _runs_of(steps):
        first, last = _span(steps, part)
        present = {number for each in part for number in _numbers(steps[each])}
        if partial:
            last = min(_numbers(steps[part[-1]]))
        place = 0
        for number in range(first, last + 1):
            while place + 1 < len(part) and number > max(_numbers(steps[part[place]])):
                place += 1
            if number in present:
                continue
            # Between two steps it may be of the earlier one, too: the lower limit holds for both.
            at, limits = part[place], [steps[part[place]].limit]
            if place and number < min(_numbers(steps[at])):
                limits.append(steps[part[place - 1]].limit)
                at = part[place - 1]
            steps[at].dropped.append(number)
            if known := [limit for limit in limits if limit is not None]:
                steps[at].limits.append(min(known))
    return partial


def _issued(steps: Mapping[int, _Step]) -> int:
    return sum(len(step.groups) + len(step.dropped) for step in steps.values())


def _filtered(run: ImportedRun, steps: Mapping[int, _Step]) -> int | None:
    """Groups that dynamic sampling dropped in these steps; None without a log that says so."""
    logged = {step.step: step.filtered for step in run.steps if step.filtered is not None}
    if not set(steps) <= set(logged):
        return None
    for number, step in steps.items():
        step.filtered = min(round(logged[number]), len(step.dropped))
    return sum(step.filtered for step in steps.values())


def _all_differ(groups: Sequence[_Group]) -> bool:
    told = [group for group in groups if len(group.rewards) > 1]
    return len(told) >= _FEWEST and all(max(group.rewards) != min(group.rewards) for group in told)


# -- prompts that were trained less often --------------------------------------------------------------------------


def _passes(groups: Sequence[_Group], steps: Mapping[int, _Step], rows: int | None, issued: int | None) -> int:
    """Whole passes over the data that the run has surely made; 0 where dumps of some steps are missing.

    A prompt that stands in the data twice is trained more often: some prompts must agree, and where groups are
    numbered (`issued`), their number bounds the passes.
    """
    if len(_runs_of(steps)) > 1:
        return 0
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.prompt] = counts.get(group.prompt, 0) + 1
    agree = max(_AGREEING, round(_AGREEING_SHARE * len(counts)))
    most = sorted(counts.values(), reverse=True)[min(agree, len(counts)) - 1]
    # Of a run that began before its first dump, the first pass may have been given out in part.
    whole = most - (1 if min(steps) <= 1 else 2)
    if issued is not None:
        whole = min(whole, issued // (rows or len(counts)))
        if rows and min(steps) == 0:
            whole = issued // rows
    return max(0, whole)


def _named(groups: Sequence[_Group], passes: int, rows: int | None) -> tuple[list[dict[str, Any]], int | None]:
    """Prompts of which whole passes were dropped, the most often dropped first, and how many passes at least.

    Prompts that were never trained have no name; with `rows` they are counted.
    """
    by_prompt: dict[str, list[_Group]] = {}
    for group in groups:
        by_prompt.setdefault(group.prompt, []).append(group)
    found: list[dict[str, Any]] = []
    for prompt, own in by_prompt.items():
        if len(own) < passes:
            means = [group.mean for group in own if group.mean is not None]
            longest = [group.longest for group in own if group.longest is not None]
            rewards = [reward for group in own for reward in group.rewards]
            found.append({
                "prompt": own[0].text, "id": prompt, "trained": len(own), "dropped": passes - len(own),
                "mean_tokens": statistics.fmean(means) if means else None, "longest": max(longest, default=None),
                "mean_reward": statistics.fmean(rewards) if rewards else None,
            })  # fmt: skip
    found.sort(key=lambda row: (-row["dropped"], -(row["mean_tokens"] or 0.0), row["id"]))
    if passes < 1:
        return found, None
    never = max(0, rows - len(by_prompt)) if rows else 0
    return found, sum(row["dropped"] for row in found) + never * passes


def _whom(groups: Sequence[_Group], named: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Means of tokens and rewards over trained responses of prompts that were dropped sometimes, and of the others."""
    ids = {row["id"] for row in named}
    result: dict[str, Any] = {}
    for name, part in (
        ("dropped_sometimes", [group for group in groups if group.prompt in ids]),
        ("never_dropped", [group for group in groups if group.prompt not in ids]),
    ):
        means = [group.mean for group in part if group.mean is not None]
        rewards = [reward for group in part for reward in group.rewards]
        result[name] = {
            "prompts": len({group.prompt for group in part}),
            "mean_tokens": statistics.fmean(means) if means else None,
            "mean_reward": statistics.fmean(rewards) if rewards else None,
        }
    return result if ids else None


# -- the length ratio ----------------------------------------------------------------------------------------------


def _cap(samples: Sequence[DumpedSample]) -> int | None:
    """The cap, where a response reached it."""
    return max((s.tokens for s in samples if s.truncated and s.tokens is not None), default=None)


class _Ratio:
    """Trained over unconditioned mean length, where the trained groups of each step are its first to end."""

    def __init__(self, steps: Mapping[int, _Step], cap_tokens: int | None) -> None:
        self._cap = cap_tokens
        self._groups = [group for step in steps.values() for group in step.groups]
        # (limit, how many groups lie beyond it); those that were filtered are left out of a step evenly.
        self._beyond = [
            (limit, (len(step.dropped) - step.filtered) / len(step.dropped))
            for step in steps.values()
            for limit in step.limits
        ]
        self.notes: list[str] = []

    def stated(self) -> dict[str, Any]:
        """`length_ratio`, and its range `length_ratio_low` to `_high`; the mean without over-sampling, in tokens."""
        missing = sum(weight for _, weight in self._beyond)
        known = [(g.mean, g.longest) for g in self._groups if g.mean is not None and g.longest is not None]
        if len(known) < len(self._groups):
            self.notes.append("the length ratio is not known: the dumps have no lengths (--tokenizer)")
            return dict.fromkeys(_RATIO)
        trained = statistics.fmean(mean for mean, _ in known)
        if missing < 1e-9:
            self.notes.append("nothing was dropped for its length: what was trained is what the model wrote")
            return dict(zip(_RATIO, (1.0, 1.0, 1.0, trained), strict=True))
        if len(known) < _FEWEST or len({longest for _, longest in known}) < 3:
            self.notes.append(f"the length ratio is not known: {len(known)} groups are too few for an estimate")
            return dict.fromkeys(_RATIO)
        self._fit(known)

        def ratio(beyond: float) -> float:
            return trained * (len(known) + missing) / (trained * len(known) + beyond)

        points = [weight * self._mean_beyond(limit) for limit, weight in self._beyond]
        least = [weight * self._mean_at(limit) for limit, weight in self._beyond]
        most = None if self._cap is None else math.fsum(w * self._mean_at(max(self._cap, b)) for b, w in self._beyond)
        self.notes.append(
            "the length ratio is an estimate: it takes groups to start together and to end with their longest "
            "response, and a log-normal law beyond the longest trained one; the range takes dropped groups to end "
            "just there, or all at the cap"
        )
        point = ratio(math.fsum(points))
        low = None if most is None else min(ratio(most), point)
        return dict(zip(_RATIO, (point, low, max(ratio(math.fsum(least)), point), trained / point), strict=True))

    def _fit(self, known: Sequence[tuple[float, int]]) -> None:
        """The law of a group's longest response (mean and deviation of its logarithm), and of the mean given that."""
        logs = [math.log(max(1, longest)) for _, longest in known]
        limits: dict[float, float] = {}
        for limit, weight in self._beyond:
            limits[math.log(max(1, limit))] = limits.get(math.log(max(1, limit)), 0.0) + weight
        total, normal = len(logs) + math.fsum(limits.values()), NormalDist()
        centre, spread = statistics.fmean(logs), max(0.05, statistics.pstdev(logs))
        first, second = math.fsum(logs), math.fsum(x * x for x in logs)
        for _ in range(200):
            s1, s2 = first, second
            for edge, weight in limits.items():
                z = (edge - centre) / spread
                tail = max(1e-12, 1.0 - normal.cdf(z))
                hazard = normal.pdf(z) / tail if tail > 1e-11 else z
                s1 += weight * (centre + spread * hazard)
                s2 += weight * (centre**2 + spread**2 + spread * (edge + centre) * hazard)
            before, centre = centre, s1 / total
            spread = math.sqrt(max(2.5e-3, s2 / total - centre**2))
            if abs(centre - before) < 1e-9:
                break
        self._centre, self._spread = centre, spread
        ratios = [math.log(mean / max(1, longest)) for mean, longest in known]
        middle = statistics.fmean(logs)
        variance = math.fsum((x - middle) ** 2 for x in logs)
        mean_ratio = statistics.fmean(ratios)
        self._slope = math.fsum((x - middle) * (r - mean_ratio) for x, r in zip(logs, ratios, strict=True)) / variance
        self._level = mean_ratio - self._slope * middle
        # Means of logarithms lie below means: the residuals make up for it.
        residuals = [r - self._level - self._slope * x for x, r in zip(logs, ratios, strict=True)]
        self._smear = statistics.fmean(math.exp(each) for each in residuals)

    def _mean_at(self, longest: float) -> float:
        """Mean length of a group whose longest response has so many tokens."""
        share = self._smear * math.exp(self._level + self._slope * math.log(max(1.0, longest)))
        return longest * min(1.0, share)

    def _longest_beyond(self, limit: int) -> list[float]:
        """Quantiles of the longest response beyond a limit, at the middles of equal shares."""
        law = NormalDist(self._centre, self._spread)
        below = min(law.cdf(math.log(max(1, limit))), 1.0 - 1e-9)
        found = [math.exp(law.inv_cdf(min(below + (1.0 - below) * share, 1.0 - 1e-12))) for share in _GRID]
        return [max(limit, each if self._cap is None else min(each, self._cap)) for each in found]

    def _mean_beyond(self, limit: int) -> float:
        return statistics.fmean(map(self._mean_at, self._longest_beyond(limit)))

    def bars(self) -> dict[str, Any] | None:
        """The histogram of groups by their longest response: trained ones, and dropped ones as they are estimated."""
        counts: dict[float, float] = {}
        for limit, weight in self._beyond if hasattr(self, "_centre") else ():
            for longest in self._longest_beyond(limit):
                counts[longest] = counts.get(longest, 0.0) + weight / len(_GRID)
        return _bars(self._groups, counts)


def _bars(groups: Sequence[_Group], dropped: Mapping[float, float]) -> dict[str, Any] | None:
    """Counts of groups in equal steps of the logarithm of their longest response; None without lengths."""
    longest = [group.longest for group in groups if group.longest is not None]
    if not longest:
        return None
    low, high = math.log(max(1, min(longest))), math.log(max(2.0, *longest, *dropped)) + 1e-9
    width = max(high - low, 1e-6) / _BARS
    bars: dict[str, list[float]] = {"trained": [0.0] * _BARS, "dropped": [0.0] * _BARS}

    def place(value: float) -> int:
        return min(_BARS - 1, max(0, int((math.log(max(1.0, value)) - low) / width)))

    for tokens in longest:
        bars["trained"][place(tokens)] += 1
    for value, count in dropped.items():
        bars["dropped"][place(value)] += count
    return {"edges_tokens": [math.exp(low + width * k) for k in range(_BARS + 1)], **bars}
