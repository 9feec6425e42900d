"""Why the plan is as it is: for each decision its next best alternative, what that costs, and in which phase.

The alternative to a decision is the best schedule that differs in it, all else being free: what one would do instead.
Alternatives that lost early were simulated for a few rounds only; their figures say "about".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...plans.facts.round_bars import critical_path
from ...plans.phrases.numbers import MATTERS, bytes_text, count, digits, percent
from ...plans.phrases.sentences import levers_text
from ...plans.schema.job import Job
from ...plans.schema.predicted import Predicted
from ...profiles.phase_schema import TrainedAdapters
from ...profiles.profile_schema import Profile
from ...rounds.timeouts import TimeoutSpec
from ..choose.candidate_search import ON_REQUEST, Search, is_plain
from ..choose.candidates.candidate_rounds import over_issue
from ..choose.candidates.reward_choices import fixed_workers
from ..choose.candidates.round_kinds import ShortKey
from ..choose.cycle_cost import Column, Cycle
from ..choose.holdout_rounds import Holdout, ScheduledRounds, scheduled_rounds
from ..choose.schedule_choice import Decided, fitting_plain_cycles, keeps_slo
from ..choose.ties import least_gain, simplicity
from ..costs.colocation import TurnsTake, turns_text
from ..costs.decode_costs import engines_of
from ..costs.memory_table import WEIGHT_BYTES
from ..costs.reward_costs import RewardCost, further_costs
from ..costs.round_costs import with_judge
from ..simulate.columns.round_log import mean
from .decisions import alternatives, decisions, placement_text


def explain(
    search: Search, decided: Decided, job: Job, predicted: Predicted, assumed: dict[str, str]
) -> dict[str, str]:
    """The plan's `why`: text by dotted key of the plan's job section. `assumed`: texts on what was not measured.

    What is told of the schedule itself is predicted (holdout rounds); alternatives are compared on the rounds that the
    choice was made on.
    """
    why = {"bias.mode": _mode(search, decided), **alternatives(search, decided.cycle)}
    if saved_s := _levers(search, decided, predicted.step_s.mean):
        why["levers"] = levers_text(saved_s, predicted.step_s.mean)
    if search.space.profile.scaled:
        why["model"] = search.space.profile.scaled
    if (adapters := search.space.profile.adapters) is not None:
        why["model.lora"] = _adapters(search.space.profile, adapters, job)
    if (timeouts := _timeouts(search.setting.reward_of(decided.cycle.short.key))) is not None:
        why["reward.adaptive_timeout"] = timeouts
    if search.limits.workers:
        why["reward.workers"] = _workers(decided, job)
    if search.space.rewards[decided.cycle.short.reward].further:
        why["reward.further"] = _further(search, decided.cycle)
    why |= _rollouts(search, decided, predicted) | _drafts(search, decided.cycle, job, predicted)
    if search.space.reference:
        why["rounds.short.train.reference"] = search.space.reference
    why["step"] = critical_path(predicted).text()
    why |= {f"refused.{number}": refusal for number, refusal in enumerate(search.space.refused)}
    why |= _choice(search, decided, predicted)
    if overrides := job.algorithm.overrides():
        # The reader should not confuse this name with the paper's.
        why["algorithm"] = f"the job overrides its algorithm: {', '.join(overrides)}"
    return why | assumed


def _adapters(profile: Profile, adapters: TrainedAdapters, job: Job) -> str:
    """What adapters of the job leave of parameters to train, and of bytes to send, and where their costs come from."""
    weights = WEIGHT_BYTES[job.model.dtype] * profile.model_parameters
    sent = bytes_text(round(profile.sent_bytes(WEIGHT_BYTES[job.model.dtype])))
    way = f"merged, as without adapters: {sent}" if adapters.sent == "merged" else (
        f"alone, {sent} in place of {bytes_text(weights)}, and each engine adds them to the model's files"
    )  # fmt: skip
    known = "measured with them" if profile.provenance == "measured" else "by physics, no run with them is fitted"
    return (
        f"adapters of rank {adapters.rank} have {adapters.parameters:,} parameters, "
        f"{digits(100 * adapters.parameters / profile.model_parameters)}% of the model's, whose gradients and moments "
        f"are all that there are; they are sent {way}; updates are {known}"
    )


def _levers(search: Search, decided: Decided, step_s: float) -> dict[str, float]:
    """By lever of the schedule, what a step of `step_s` seconds takes more without it, all else being kept: on rounds
    that nothing was chosen on, the same for both. Without long rounds it is the fastest schedule of mode sync.

    Balanced rounds are slow to simulate: what other levers save is told of rounds that are not balanced."""
    holdout, chosen = decided.holdout.search, decided.holdout.cycle
    rounds = chosen.short.rounds, chosen.long.rounds if chosen.long else 0

    def seconds(cycle: Cycle, on: Search = holdout) -> float:
        simulated = on.simulate(cycle, *rounds)
        return sum(on.phase_seconds(simulated, *rounds).values()) if simulated.trains else math.inf

    def without(cycle: Cycle, **off: Any) -> Cycle:
        def less(column: Column[Any]) -> Column[Any]:
            values = {name: value for name, value in off.items() if name in column.key._fields}
            return replace(column, key=column.key._replace(**values))

        return replace(cycle, short=less(cycle.short), long=less(cycle.long) if cycle.long else None)

    bare = without(chosen, balanced=False)
    less = {
        "long rounds": _without_long_rounds(search, bare) if bare.long is not None else None,
        "drafts": without(bare, draft_tokens=0),
        "hand-over": without(bare, hand_over=0.0),
        "tail": without(bare, tail=0.0, tail_tp=0),
        "queue": without(bare, queue=()),
    }
    planned, bare_s = seconds(chosen), seconds(bare)
    more = {name: seconds(cycle) - bare_s for name, cycle in less.items() if cycle is not None and cycle != bare}
    if bare != chosen:
        more["balance"] = bare_s - planned
    if search.setting.streams:
        again = holdout.anew([bare], holdout.setting.draws)
        whole = replace(holdout.setting, streams=False)
        waiting = Search(whole, again.space, again.limits, None, search.mode, search.passes)
        more["streaming"] = seconds(bare, waiting) - bare_s
    return {name: step_s * each / planned for name, each in more.items() if math.isfinite(each)}


def _without_long_rounds(search: Search, chosen: Cycle) -> Cycle | None:
    """The fastest schedule of mode sync on the nodes of `chosen`, scored as it is, with no lever that it has not."""
    limits = search.limits
    drafts = any(kind.key.draft_tokens for kind in (chosen.short, chosen.long) if kind is not None)
    alike = [
        c
        for c in search.sync_cycles()
        if c.trains and c.taken(limits).within(chosen.taken(limits)) and (drafts or not c.short.key.draft_tokens)
        if "memory" not in c.violations(limits)
    ]
    best = min(alike, key=lambda c: (c.seconds_per_sample(limits.group_size), c.name), default=None)
    if best is None:
        return None
    return replace(best, short=replace(best.short, key=best.short.key._replace(reward=chosen.short.reward)))


def _rollouts(search: Search, decided: Decided, predicted: Predicted) -> dict[str, str]:
    """Reasons on rollouts: shared prefixes, the share of long rounds, layouts priced by another count of engines."""
    why, cycle = {}, decided.cycle
    for rounds in scheduled_rounds(search, cycle):
        round_kind = "short" if isinstance(rounds.key, ShortKey) else "long"
        kv = engines_of(search.space.profile, rounds.layout, search.setting.kv_tokens(rounds.key))
        if kv.kv_tokens is not None and kv.kv_tokens < kv.entry.kv_capacity_tokens:
            most = bytes_text(replace(kv, kv_tokens=None).kv_bytes)
            of_kind = predicted.rounds.short if round_kind == "short" else predicted.rounds.long
            held = of_kind.memory.kv.needed_bytes if of_kind is not None else 0
            why[f"rounds.{round_kind}.rollout.kv_tokens"] = (
                f"an engine's KV cache takes {bytes_text(kv.kv_bytes)} of the {most} that would fit, "
                f"{digits(kv.kv_bytes / held)} times the most that its samples held in a simulated round"
            )
        saved = search.space.kept_together.get(rounds.layout)
        if saved is not None:
            why[f"rounds.{round_kind}.rollout.prefix"] = (
                f"all samples of a prompt run on one engine, which saves {100 * saved:.1f}% of a plain rollout"
            )
    if decided.holdout.cycle.long is not None:
        why["rounds"] = _shares(decided.holdout)
    for round_kind, column in (("short", cycle.short), ("long", cycle.long)):
        measured = search.space.decode[column.layout].measured_engines if column is not None else 0
        if column is not None and measured and (round_kind == "short" or column.layout != cycle.short.layout):
            why[f"rounds.{round_kind}.rollout.costs"] = (
                f"{column.layout} is not in the profile; its costs are those of the nearest layout there, "
                f"{measured} x tp {column.layout.tp}"
            )
    return why


def _drafts(search: Search, cycle: Cycle, job: Job, predicted: Predicted) -> dict[str, str]:
    """What the drafts of each kind of round give, and what they do not in the first epoch; empty without drafts."""
    why, measured = {}, search.space.profile.drafts
    assumed = job.search.drafts is not None and job.search.drafts.acceptance is not None
    for round_kind, column in (("short", cycle.short), ("long", cycle.long)):
        if column is None or not column.key.draft_tokens:
            continue
        drafts = search.space.drafted[column.layout, column.key.draft_tokens].drafts
        assert drafts is not None, "its costs are drafted"
        late, early = (law.emitted(drafts.tokens, 1) for law in (drafts.law, drafts.first))
        source = "assumed" if assumed or measured is None else measured.provenance
        why[f"rounds.{round_kind}.rollout.drafts.gain"] = (
            f"a sample alone on its engine gets {late:.2f} tokens from a decoding step with drafts ({source}), "
            f"{early:.2f} in the first epoch"
        )
    if why and predicted.first_epoch_s is not None:
        more = 100 * (predicted.first_epoch_s / predicted.step_s.mean - 1)
        why["drafts"] = (
            f"predicted for the second epoch on, when prompts have earlier responses; a step of the first epoch takes "
            f"{predicted.first_epoch_s:.4g} s ({more:+.1f}%)"
        )
    return why


def _choice(search: Search, decided: Decided, predicted: Predicted) -> dict[str, str]:
    """Reasons for the schedule beside its speed: ties, the baseline, pools, and cautions."""
    rounds = scheduled_rounds(decided.holdout.search, decided.holdout.cycle)
    take = [TurnsTake(kind.log.turns_of(kind.train), kind.train.moves_s) for kind in rounds]
    turns = [(kind.layout.tp, kind.train.layout, each) for kind, each in zip(rounds, take, strict=True)]
    texts = {
        "ties": tie_text(search, decided),
        "waste": _waste_text(rounds, search.setting.target, search.limits.group_size),
        "baseline": baseline_text(search, decided.baseline),
        "colocation": None if search.space.pools.apart else turns_text(search.space.profile, turns),
        "placement": placement_text(search, decided.cycle, predicted.phases_s),
    }
    return {key: text for key, text in texts.items() if text is not None}


def tie_text(search: Search, decided: Decided) -> str | None:
    """Text on how the proven best schedule differs from the chosen one, which is simpler and as good as far as is known
    (ties.py); None if they are one."""
    fastest, chosen = decided.solution.cycle, decided.cycle
    mode = fastest.short.deferral.mode
    both = chosen.long is not None and fastest.long is not None
    if chosen.short.deferral.mode != mode:
        differences = [f"mode {mode}"]
    else:
        made = decisions(search, mode, both)
        # Whether rounds are balanced is decided after the proof, and is no tie.
        made = [each for each in made if not each.key.endswith(".balance")]
        differences = [each.text(fastest) for each in made if each.value(chosen) != each.value(fastest)]
    if not differences:
        return None
    unit = "cheaper" if search.limits.objective == "usd" else "faster"
    given_up = decided.given_up(search)
    reason = f"within the costs' error; the simplest within {100 * decided.tolerance:.1f}% is planned"
    if chosen.short.deferral.mode == "sync" and (mode != "sync" or is_plain(chosen) > is_plain(fastest)):
        least = least_gain(fastest, decided.tolerance)
        reason = f"and is not planned unless that is {100 * least:.1f}%"
        if given_up > least:
            reason = "and on rounds that nothing was chosen on it is slower"
    elif simplicity(search, fastest) == simplicity(search, chosen):
        reason = "within sampling error; fewer samples are planned"
    how = f"{percent(given_up)} {unit}" if given_up >= 0.0005 else "no " + unit
    return f"{', '.join(differences)} would be {how}, {reason}"


def _mode(search: Search, decided: Decided) -> str:
    """Text on the speed-up of the mode over plain rounds, its bias, and the speed-ups of other modes."""
    cycle, baseline, holdout, size = decided.cycle, decided.baseline, decided.holdout, search.limits.group_size
    mine, base = holdout.seconds
    ratio, error = holdout.search.measured_ratio(holdout.cycle)
    texts = [f"plain rounds, {mine * 1e3:.4g} ms a sample"]
    if holdout.cycle != holdout.baseline:
        texts = [
            f"{base / mine:.2f}x the samples per second of plain rounds ({mine * 1e3:.4g} ms a sample, plain rounds "
            f"{base * 1e3:.4g} ms)"
        ]
    if cycle.short.deferral.mode != "sync":
        texts.append(f"length ratio {ratio:.3f}" + (f" ± {error:.3f}" if error >= 5e-4 else ""))
    if cycle.short.deferral.mode == "predict":
        texts.append(_plain_epoch(search, cycle))
    for mode in ("exact", "predict", "defer", "race"):
        if mode == cycle.short.deferral.mode:
            continue
        cycles_of_mode = [c for c in search.cycles() if c.short.deferral.mode == mode]
        best = min(cycles_of_mode, key=lambda c: (c.cost(search.limits), c.name), default=None)
        if best is not None:
            gain = baseline.seconds_per_sample(size) / best.seconds_per_sample(size)
            bias = search.measured_ratio(best)[0]
            when = f", from the second epoch on (planned only with --mode {mode})" if mode in ON_REQUEST else ""
            texts.append(f"mode {mode} would reach about {gain:.2f}x at length ratio {bias:.2f}{when}")
    return "; ".join(texts)


def _shares(holdout: Holdout) -> str:
    """The share of long rounds in the steps and in the time."""
    short, long = scheduled_rounds(holdout.search, holdout.cycle)
    long_s, short_s = (rounds.share * mean(rounds.step_s()) for rounds in (long, short))
    of_time = long_s / (long_s + short_s)
    return f"long rounds are {100 * long.share:.1f}% of the steps and {100 * of_time:.1f}% of the time"


def _plain_epoch(search: Search, cycle: Cycle) -> str:
    """The caution that the speed of `predict` begins with the second epoch."""
    key = cycle.short.key
    plain_key = ShortKey("sync", key.prompts, key.samples, None, key.layout)
    # It may have been simulated with other reward workers only.
    plain = next(column.log for k, column in search.short.items() if k._replace(reward=0) == plain_key)
    seconds = mean(plain.step_s(search.space.train[cycle.train])) / (mean(plain.groups) * search.limits.group_size)
    return (
        f"this holds from the second epoch on, if lengths do not change between epochs; the first epoch has no history "
        f"and runs plain rounds, about {seconds * 1e3:.4g} ms a sample"
    )


def _workers(decided: Decided, job: Job) -> str:
    """Text on the seconds of a step with one reward worker fewer and one more, which are simulated on the rounds that
    the plan is predicted from, and on the host cores that bound them."""
    search, cycle = decided.holdout.search, decided.holdout.cycle
    size, choices, judge = search.limits.group_size, search.space.rewards, search.space.judge
    profile = search.space.profile
    chosen, room = choices[cycle.short.reward], search.limits.worker_room[cycle.short.layout]
    rounds = cycle.short.rounds, cycle.long.rounds if cycle.long else 0
    used, texts = chosen.all_workers - fixed_workers(job.reward), []
    for workers in (chosen.workers - 1, chosen.workers + 1) if job.reward.pooled[0].workers is None else ():
        if workers >= 1 and used + workers - chosen.workers <= room:
            costs = [with_judge(each.with_workers(workers).cost(profile.reward), profile, judge) for each in choices]
            other = search.anew([cycle], search.setting.draws, costs).simulate(cycle, *rounds)
            change_s = other.seconds_per_sample(size) - cycle.seconds_per_sample(size)
            change = change_s / cycle.seconds_per_sample(size)
            step_s = size * search.setting.target * abs(change_s)
            how = f"{step_s:.3g} s {'longer' if change > 0 else 'less'}" if abs(change) >= MATTERS else "as long"
            texts.append(f"with {workers} a step takes {how}")
    parts = [f"{count(chosen.workers, 'reward worker')}; {', '.join(texts)}"] if texts else []
    slower = search.setting.crowding(cycle.short.layout, chosen.all_workers)
    if slower != 1.0:
        measured = count(profile.reward.workers, "worker")
        parts.append(f"decoding is estimated to take {slower:.2f} times as long as beside the {measured} profiled")
    return "; ".join([*parts, f"engines leave {count(room, 'host core')} to the workers"])


def _further(search: Search, cycle: Cycle) -> str:
    """Text on the pools of a reward's further parts: where their seconds are from, and what of them is simulated."""
    pools = search.space.rewards[cycle.short.reward].further
    texts = [
        f"{name}: {count(pool.workers, 'worker')}, {each.mean_s():.3g} s a sample"
        for (name, pool), each in zip(pools, further_costs(pool for _, pool in pools), strict=True)
    ]
    return (
        f"{'; '.join(texts)}; these seconds ship with rlplan, since a profile measures the first part alone; of all "
        "pools and the judge only the slowest is simulated, not how a sample waits for the others"
    )


def _timeouts(reward: RewardCost) -> str | None:
    """Text on the worker seconds that adaptive deadlines save; None without them, or if the profile cannot tell."""
    if reward.executions is None or not reward.timeout.adapts:
        return None
    fixed = replace(reward, timeout=TimeoutSpec(reward.timeout.max_s))
    return (
        f"once its prompt was seen, a sample takes a reward worker {reward.mean_s():.3g} s in the mean, and "
        f"{fixed.mean_s():.3g} s if every prompt kept the longest deadline; a right answer much slower than its "
        "prompt's earlier ones may be judged wrong, and the run counts how many could be"
    )


def _wasted_shares(rounds: Sequence[ScheduledRounds], group_size: int) -> tuple[float, float | None]:
    """(samples issued for each trained one, share of the decoded tokens whose samples are not trained), both over all
    simulated steps: redraws count as issued, and aborted samples as decoded up to their abort.

    The share is None where some rounds were composed without it (cell_columns.py).
    """
    issued = sum(p.share * mean(p.log.issued) for p in rounds)
    trained = sum(p.share * mean(p.log.groups) * group_size for p in rounds)
    decoded = sum(p.share * mean(p.log.decoded) for p in rounds)
    kept = sum(p.share * mean(p.log.kept) for p in rounds)
    counted = all(mean(p.log.decoded) > 0 for p in rounds)
    return issued / trained, 1.0 - kept / decoded if counted else None


def _waste_text(rounds: Sequence[ScheduledRounds], target: int, group_size: int) -> str | None:
    """The plan's `why.waste`, where rounds train `target` prompts; None if all decoded tokens are trained."""
    issued, wasted = _wasted_shares(rounds, group_size)
    text = f"{issued:.2f} samples are issued for each trained one over a cycle, redraws included"
    short = [p.key for p in rounds if isinstance(p.key, ShortKey)]
    if short:
        begun = over_issue(short[0].prompts, short[0].samples, target, group_size)
        if f"{begun:.2f}" != f"{issued:.2f}":
            text += f" ({begun:.2f} when a short round starts, which search.max_over_issue limits)"
    if wasted is None:
        return text if issued >= 1.0005 else None
    if wasted < 0.0005:
        return None
    return f"{text}; {wasted:.1%} of the decoded tokens are not trained"


def baseline_text(search: Search, baseline: Cycle) -> str | None:
    """A caution on the baseline: that it breaks the SLO, or that other plain rounds, on another number of nodes, cost
    fewer USD. None without a caution."""
    limits, said = search.limits, []
    if not keeps_slo(baseline, limits):
        said.append("no plain rounds on these nodes keep slo.step_p95_s; the fastest of them are compared")
    cheapest = min(fitting_plain_cycles(search), key=lambda c: (c.cost(limits), c.name))
    if limits.objective == "usd" and cheapest.nodes(limits) != baseline.nodes(limits):
        size = limits.group_size
        seconds = cheapest.seconds_per_sample(size) / baseline.seconds_per_sample(size)
        usd = cheapest.usd_per_sample(limits) / baseline.usd_per_sample(limits)
        breaks = "" if keeps_slo(cheapest, limits) else ", and break slo.step_p95_s"
        on, cheapest_on = (count(cycle.nodes(limits), "node") for cycle in (baseline, cheapest))
        said.append(
            f"compared on {on}, as the plan takes; plain rounds cost least on {cheapest_on}, where a sample takes "
            f"{seconds:.2f} times the seconds and {usd:.2f} times the USD{breaks}"
        )
    return "; ".join(said) or None
