"""The rounds that a plan has written, as candidates of a search: what `refresh` simulates beside the solver's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..plans.facts.executable import is_for_any
from ..plans.facts.model_shape import ModelShape
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.plan import Plan
from ..plans.schema.planned_job import PlannedJob
from ..plans.schema.planned_rounds import LongRound
from ..plans.yaml.errors import InputError
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from .choose.candidate_search import ON_REQUEST, UNBIASED, Pass, Search
from .choose.candidates.round_kinds import LongKey, ShortKey
from .choose.plan_limits import Objective
from .choose.rewards.reward_choices import room_beside
from .costs.memory_table import JobMemory
from .costs.round_costs import RoundCosts, round_costs, scoring
from .costs.update_costs import TrainCost
from .lengths.length_model import LengthModel
from .search_inputs import prepare
from .simulate.columns.column_setting import AsWritten, Setting
from .solve_options import SolveOptions


@dataclasses.dataclass(frozen=True)
class WrittenRounds:
    """The plan's kinds of round as candidates; `train`, `long_train`: their updates' indices in the search's."""

    short: ShortKey
    long: LongKey | None
    train: int
    long_train: int


def search_with_plan(
    plan: Plan,
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    model: ModelShape | None,
    *,
    seed: int,
    passes: Sequence[Pass],
    prompts: int | None,
) -> tuple[Search, WrittenRounds]:
    """(the solver's search with the plan's kinds of round among its candidates, those kinds); nothing is simulated yet.

    `model`: the shape of the job's model; None: unknown. Raises InputError for decisions that are not priced, or that
    no candidate has.
    """
    planned, mode = plan.job, plan.job.bias.mode
    forced = plan.solver.forced_mode == mode
    # A mode that was not forced is the solver's to choose from, unless only force brings it in.
    only = forced or mode in ON_REQUEST or (planned.bias.budget == 0 and mode not in UNBIASED)
    objective: Objective = "usd" if plan.solver.objective == "usd_per_sample" else "seconds"
    options = SolveOptions(
        mode=mode if only else None,
        bias_budget=plan.solver.forced_budget if forced else planned.bias.budget,
        objective=objective,
        within_s=plan.solver.within_s,
        seed=seed,
        prompts=prompts,
        for_any=is_for_any(plan, model),
        passes=passes,
    )
    search = prepare(cluster, job, profile, trace, options, planned)
    _must_be_a_candidate(planned, search, search.setting.draws.model)
    priced = round_costs(planned, profile, job.search.drafts, cluster)
    short = _short_key(planned)
    long = _long_key(short, planned.rounds.long) if planned.rounds.long is not None else None
    keys: list[tuple[ShortKey | LongKey, RoundCosts]] = [(short, priced[0])] + ([(long, priced[1])] if long else [])
    space, limits, pools = search.space, search.limits, search.space.pools
    # Plain rounds on the plan's own engines, to compare it with and, of `predict`, for its first epoch.
    plain = {
        ShortKey("sync", issued, samples, None, short.layout)
        for issued, samples in (
            (planned.issue.prompts_per_step, planned.issue.samples_per_prompt),
            *([(short.prompts, short.samples)] if mode == "predict" else []),
        )
    }
    train, memory = list(space.train), JobMemory(profile, pools, job.model.dtype)
    updates = [_update_index(train, kind.train) for _, kind in keys]
    layouts = {key.layout: kind.decode for key, kind in keys}
    layouts |= {kind.change.after.key: kind.change.after for _, kind in keys if kind.change and kind.change.is_tail}
    space = dataclasses.replace(
        space,
        short=tuple(sorted({*space.short, short, *plain})),
        long=tuple(sorted({*space.long, *([long] if long else [])})),
        decode={**{key: cost for key, cost in layouts.items() if key not in space.decode}, **space.decode},
        train=tuple(train),
    )
    limits = dataclasses.replace(
        limits,
        host_bytes={**{key: cost.host_bytes for key, cost in layouts.items()}, **limits.host_bytes},
        nodes={**limits.nodes, **{key: pools.rollout.nodes_of(key.engines, key.tp) for key in layouts}},
        worker_room={**limits.worker_room, **{key: room_beside(key, pools.rollout, job.reward) for key in layouts}},
        sharding=space.sharding,
        train_nodes=tuple(pools.of_trainers.nodes_of(1, update.layout.accelerators) for update in train),
        train_host=tuple(memory.trainer_share(update.layout) for update in train),
    )
    setting = dataclasses.replace(search.setting, decode=space.decode, reward=scoring(planned, profile))
    written = {
        key: AsWritten(kind.decode, kind.max_num_seqs, kind.kv_tokens)
        for key, kind in keys
        if _differs(setting, key, kind)
    }
    # A cell has keys of its own, under which nothing is written: such a plan is simulated whole, however large.
    setting = dataclasses.replace(setting, as_written=written, cell_prompts=0 if written else setting.cell_prompts)
    whole = Search(setting, space, limits, job.slo.step_p95_s, search.mode, passes)
    return whole, WrittenRounds(short, long, updates[0], updates[-1])


def _differs(setting: Setting, key: ShortKey | LongKey, kind: RoundCosts) -> bool:
    """Whether a kind of round is not what a candidate of its key would be."""
    if key.draft_tokens and (key.layout, key.draft_tokens) not in setting.drafted:
        return True
    return (setting.cost_of(key), setting.at_once(key)) != (kind.decode, kind.max_num_seqs)


def _must_be_a_candidate(planned: PlannedJob, search: Search, model: LengthModel) -> None:
    """Raise InputError for what can be written into a plan and no round of the search has."""
    short, long, pool = planned.rounds.short, planned.rounds.long, search.space.pool
    if short.rollout.pool != pool:
        raise InputError(
            f"job.rounds.short.rollout.pool: is {short.rollout.pool}, and the profile prices pool {pool}; write that, "
            "or solve with a profile of the other pool"
        )
    if short.hand_over is not None:
        raise InputError("job.rounds.short.hand_over: only long rounds hand engines over; write null")
    if long is not None and long.hand_over is not None and long.hand_over.engines != long.rollout.engines // 2:
        raise InputError(
            f"job.rounds.long.hand_over.engines: is {long.hand_over.engines}, and half of the engines are handed over; "
            f"write {long.rollout.engines // 2}"
        )
    if long is not None and long.tail is not None:
        most = long.rollout.engines * long.rollout.tp // long.tail.tp
        if long.tail.engines != most:
            raise InputError(
                f"job.rounds.long.tail.engines: is {long.tail.engines}, and a tail takes all devices of the round's "
                f"engines; write {most}"
            )
    size = planned.issue.samples_per_prompt
    if short.cutoff_tokens is not None and not 0 < model.short_groups(short.cutoff_tokens, size) < 1:
        raise InputError(
            f"job.rounds.short.cutoff_tokens: is {short.cutoff_tokens}, and by the length trace either no group of "
            f"{size} samples ends within it or all do; write a length that some groups stay below"
        )


def _short_key(planned: PlannedJob) -> ShortKey:
    short = planned.rounds.short
    return ShortKey(
        mode=planned.bias.mode,
        prompts=short.issue.prompts,
        samples=short.issue.samples,
        cutoff_tokens=short.cutoff_tokens,
        layout=short.rollout.layout,
        long_share=short.long_share or 0.0,
        draft_tokens=short.rollout.drafts.tokens if short.rollout.drafts else 0,
        balanced=short.rollout.balance is not None,
    )


def _long_key(short: ShortKey, long: LongRound) -> LongKey:
    return LongKey(
        deferral=short.deferral,
        copies=long.issue.copies,
        layout=long.rollout.layout,
        draft_tokens=long.rollout.drafts.tokens if long.rollout.drafts else 0,
        hand_over=long.hand_over.at_finished if long.hand_over else 0.0,
        tail=long.tail.at_finished if long.tail else 0.0,
        tail_tp=long.tail.tp if long.tail else 0,
        balanced=long.rollout.balance is not None,
        queue=()
        if long.queue is None
        else (long.issue.prompts, long.queue.more_copies_every, long.queue.until_long_after),
    )


def _update_index(train: list[TrainCost], update: TrainCost) -> int:
    """Index of the update among the candidates', to which it is appended if it is none of them."""
    if all(cost.layout != update.layout for cost in train):
        train.append(update)
    return [cost.layout for cost in train].index(update.layout)
