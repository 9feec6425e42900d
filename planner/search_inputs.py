"""The inputs of the search of a solve: the length model, the cost model and the limits, read from the documents."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial

from ..plans.phrases.numbers import count
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job
from ..plans.schema.levers import RewardJudge
from ..plans.schema.planned_job import PlannedJob
from ..plans.schema.predicted_evidence import LEAST_PROMPTS, few_lengths
from ..plans.yaml.errors import Infeasible, InputError
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import with_reward_times
from .choose.candidate_search import Search
from .choose.candidates.candidate_rounds import few_for_refills
from .choose.candidates.candidate_space import Space, enumerate_space
from .choose.candidates.pool_choice import Unplannable, choose_pools
from .choose.candidates.reward_choices import fixed_workers, judge_places, room_beside, undecided
from .choose.candidates.solve_options import DEFAULTS, SolveOptions
from .choose.cost_error import noise_of
from .choose.cycle_cost import Cycle
from .choose.plan_limits import Limits, TrainPool
from .choose.prefix_placement import place
from .costs.reward_costs import crowding, further_costs
from .costs.round_costs import change_of, judge_factors, with_judge
from .lengths.draws import Draws
from .lengths.length_model import LengthModel, fit_lengths
from .lengths.table_lengths import extrapolated
from .simulate.columns.whole_columns import Setting


def prepare(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    trace: LengthTrace,
    options: SolveOptions = DEFAULTS,
    planned: PlannedJob | None = None,
    judge: RewardJudge | None = None,
) -> Search:
    """The search of a solve before anything is simulated: length model, candidates, their costs, and limits.

    `planned`: a plan of the job, whose pools are taken, and where its judge is; None: those that the job names.
    `judge`: where the judge of a job that has one is; None: at the first of its places.
    Reward seconds that the profile assumes are replaced by those that ship for the job's kind of reward. Raises
    Unplannable where a mode is forced that the job's loss does not go with.
    """
    profile, _ = with_reward_times(profile, job.reward.kind)
    options = _as_the_loss_allows(job, options)
    if planned is not None:
        judge = planned.reward.judge
    elif judge is None:
        judge = places_of_judge(cluster, job, profile, options)[0]
    rollout, mode = job.rollout, options.mode
    model = _length_model(job, profile, trace, options.seed)
    space = enumerate_space(cluster, job, profile, model, options, planned, judge)
    if options.objective == "usd" and space.pools.usd_per_hour(space.pools.whole) == 0:
        raise InputError(
            f"pool '{space.pool}' costs nothing (usd_per_node_hour or usd_per_gpu_hour is 0), so no plan is cheaper "
            "than another; give its price or minimise seconds"
        )
    width = max(key.samples for key in space.short)
    # As wide as any candidate whatever the mode, so that a forced mode is simulated on the same draws as a free one.
    draws = Draws(model, options.seed, max(width, 2 * rollout.samples_per_prompt))
    space = place(space, draws, rollout.prompts_per_step, rollout.samples_per_prompt, rollout.max_response_tokens)
    rewards = [with_judge(choice.cost(profile.reward), profile, judge) for choice in space.rewards]
    apart, further = space.pools.apart, further_costs(pool for _, pool in space.rewards[0].further)
    placement = job.placement if planned is None else planned.placement
    setting = Setting(
        target=rollout.prompts_per_step,
        group_size=rollout.samples_per_prompt,
        cap_tokens=rollout.max_response_tokens,
        dynamic_sampling=job.algorithm.dynamic_sampling,
        decode=space.decode,
        reward=rewards[0],
        other_rewards=tuple(rewards[1:]),
        draws=draws,
        drafted=space.drafted,
        noise=partial(noise_of, profile),
        crowding=partial(crowding, profile.machine, profile.reward, further=further),
        change=partial(change_of, profile, 1.0 if judge is None else judge_factors(profile, judge)[1], apart, further),
        max_prompt_tokens=rollout.max_prompt_tokens,
        streams=placement is not None and placement.streams,
        prompts=options.prompts,
    )
    limits = _limits(job, profile, space, model.mean_tokens, options)
    return Search(setting, space, limits, job.slo.step_p95_s, mode, options.passes)


def _as_the_loss_allows(job: Job, options: SolveOptions) -> SolveOptions:
    """The options with mode sync, where the job's loss divides by what a step itself has. Raises Unplannable if another
    mode is forced."""
    setting = job.algorithm.whole_step
    if setting is None:
        return options
    key, value = setting.split(": ")
    if options.mode not in (None, "sync"):
        raise Unplannable(
            "job",
            ("algorithm", key),
            f"is {value}, which divides by what a step itself has: a token would weigh differently in short and in "
            f"long rounds of mode {options.mode}; write --mode sync, or a loss that divides by constants",
        )
    return replace(options, mode="sync")


def places_of_judge(cluster: Cluster, job: Job, profile: Profile, options: SolveOptions) -> list[RewardJudge | None]:
    """Where the job's judge may be, the simplest first; [None] without one. Raises Unplannable."""
    chosen = choose_pools(cluster, job, profile, None, options.pool)
    return judge_places(job, profile.judge, chosen.pools.rollout, chosen.train is not None, options.for_any)


def _length_model(job: Job, profile: Profile, trace: LengthTrace, seed: int) -> LengthModel:
    """The length model of the trace, with a warning where it extrapolates. Raises InputError for next to no prompts."""
    if len(trace.prompts) < LEAST_PROMPTS:
        held = f"{count(len(trace.rows), 'response')} to {count(len(trace.prompts), 'prompt')}"
        raise InputError(
            f"the length trace holds {held}, and {LEAST_PROMPTS} prompts are the least to plan by; measure more, or "
            "take lengths that ship: rlplan lengths list"
        )
    model = fit_lengths(trace, job.rollout.max_response_tokens, seed)
    few = few_lengths(len(trace.prompts), len(trace.rows))
    for caution in (extrapolated(model, trace), model.at_cap, few, _unpriced_timeouts(job, profile)):
        if caution is not None:
            warnings.warn(caution, stacklevel=3)
    if job.algorithm.dynamic_sampling and all(row.reward is None for row in trace.rows):
        raise InputError(
            "the length trace does not say what rewards responses had, which dynamic sampling depends on; import them "
            "(a column reward), or turn algorithm.dynamic_sampling off"
        )
    if job.algorithm.dynamic_sampling and all(len(set(rewards)) == 1 for rewards in model.rewards):
        raise Infeasible(
            "in the length trace all samples of a prompt have one reward, so dynamic sampling would filter every "
            "group; profile a policy that is right now and then, or turn algorithm.dynamic_sampling off"
        )
    return model


def _limits(job: Job, profile: Profile, space: Space, mean_tokens: float, options: SolveOptions) -> Limits:
    """The limits of a schedule of the candidates, and the prices of its nodes and of its changes of layout."""
    pool, own = space.pools.rollout, space.pools.train
    bias_budget = options.bias_budget
    if bias_budget is None:
        bias_budget = 0.0 if options.mode is None else math.inf
    return Limits(
        group_size=job.rollout.samples_per_prompt,
        mean_tokens=mean_tokens,
        bias_budget=bias_budget,
        slo=job.slo.step_p95_s is not None,
        host_memory_bytes=space.host_memory_bytes,
        host_bytes={key: cost.host_bytes for key, cost in space.decode.items()},
        train_host=space.train_host,
        sharding=space.sharding,
        reshard_s=space.reshard_s,
        layout_switch_s=space.layout_switch_s,
        objective=options.objective,
        within_s=options.within_s,
        nodes={key: pool.nodes_of(key.engines, key.tp) for key in space.decode},
        train_nodes=tuple(space.pools.of_trainers.nodes_of(1, update.layout.accelerators) for update in space.train),
        usd_per_node_s=pool.node_price / 3600,
        pool_nodes=pool.nodes,
        train_pool=None if own is None else TrainPool(own.host_memory_bytes, own.nodes, own.node_price / 3600),
        # The executor starts trainers once, for both kinds of round; layouts that were measured are its own.
        one_sharding=not options.for_any or profile.train_law is None,
        workers=tuple(choice.all_workers - fixed_workers(job.reward) for choice in space.rewards)
        if undecided(job.reward)
        else (),
        worker_room={key: room_beside(key, pool, job.reward) for key in space.decode},
    )


def _unpriced_timeouts(job: Job, profile: Profile) -> str | None:
    """A caution where the job's deadlines adapt and the profile cannot tell what that saves."""
    if job.reward.adaptive_timeout is None or profile.reward.executions is not None:
        return None
    return (
        "reward.adaptive_timeout is planned, but what it saves is not predicted: the profile holds one reward time for "
        "all samples; profile the job anew, or write reward.executions into the profile"
    )


def warn_of_few_prompts(search: Search, cycle: Cycle, prompts: int | None) -> None:
    """Warn where the data's `prompts` are too few for every step of the chosen schedule to train whole groups."""
    if prompts is None:
        return
    setting, key = search.setting, cycle.short.key
    rule = None if cycle.long is None else cycle.long.key.queue_rule
    queue = None if rule is None else rule.prompts
    caution = few_for_refills(
        setting.draws.model, key, setting.target, setting.group_size, setting.dynamic_sampling, prompts, queue
    )
    if caution is not None:
        warnings.warn(caution, stacklevel=3)
