"""The rollout function and the data source that run a plan's rounds inside slime or vime.

`--rollout-function-path rlplan.frameworks.slime.slime_rollout.generate_rollout
--data-source-path rlplan.frameworks.slime.slime_rollout.PlannedDataSource`, and `rlplan_plan: PLAN` in the file of
`--custom-config-path` (or RLPLAN_PLAN in the environment). Decoding, rewards and evaluation are the framework's own.

A long sample's second request continues its tokens, as slime's partial rollout does, but under the same weights. A
sample that a round drops has its HTTP request cancelled, by which the engine stops it; before a rollout ends, the
framework's own abort waits until the engines are idle, so none decodes while weights change.

Invariants:
- each row of the data set is trained or filtered once an epoch (`Schedule`), also over a resume: the schedule's state
  is saved in slime's state of its data source, as it was after the rollout that the checkpoint belongs to;
- a rollout has P groups of n samples, as slime's steps demand. Where a round trains fewer, copies of a sample without
  loss fill it up, so each sample is divided by the same number in every round.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import sys
import uuid
from importlib.util import find_spec
from typing import Any

from ...plans.yaml.errors import InputError
from ...rounds.machines.events import Issue, SampleKey
from ...rounds.machines.outcome import Fate, Outcome
from ...rounds.machines.round import Round
from ...rounds.round_spec import RoundSpec
from ...rounds.schedule import Schedule
from ..drive_round import DecodedSample, EngineGone, drive_round
from ..plan_rounds import PlannedRounds, drain_in_time, planned_rounds

logger = logging.getLogger(__name__)

# The framework that loads this module is imported; where none is (in tools and tests), the one that is installed.
_HOST = "vime" if "vime" in sys.modules or ("slime" not in sys.modules and find_spec("slime") is None) else "slime"
_ENGINE = {"slime": "sglang", "vime": "vllm"}[_HOST]

PLAN_VARIABLE = "RLPLAN_PLAN"
# Filters of groups that are the plan's dynamic sampling: groups with equal rewards are dropped.
_EQUAL_REWARDS = "filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def _host(module: str) -> Any:
    """A module of slime, or of vime; imported when first needed, since some need engines' packages."""
    return importlib.import_module(f"{_HOST}.{module}")


class PlannedDataSource(_host("rollout.data_source").RolloutDataSource):  # type: ignore[misc]
    """Serves rows of slime's data set by the plan's schedule, and saves and loads the schedule with slime's own state.

    Without a data set (`--disable-rollout-global-dataset`) it is slime's own source. A row's id is its place in the
    data set, after slime has left out prompts that are too long.
    """

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.planned: PlannedRounds | None = None
        self._states: dict[int, dict[str, Any]] = {}  # rollout id -> the schedule's state after it, of the last two
        if self.dataset is None:
            return
        self.planned = _rounds_of(args)
        # Wide numbers: the schedule sorts ids as texts.
        rows = [f"{row:09d}" for row in range(len(self.dataset.origin_samples))]
        if not rows:
            raise InputError("the data set has no rows; check --prompt-data and --rollout-max-prompt-len")
        self.schedule = Schedule(self.planned.spec, rows, seed=int(args.rollout_seed))

    def get_samples(self, num_samples: int) -> Any:
        """slime's own rows, where there is no plan. Raises RuntimeError where a plan's rounds serve them."""
        if self.planned is not None:
            raise RuntimeError(
                "rows are served by the plan's rounds: set --rollout-function-path to "
                f"{__name__}.generate_rollout, or --data-source-path back to the framework's own"
            )
        return super().get_samples(num_samples)

    def new_group(self) -> int:
        """The number of a new group; numbered on like slime's own."""
        self.sample_group_index += 1
        return int(self.sample_group_index) - 1

    def new_sample(self, row: str, group: int, kind: str) -> Any:
        """A fresh sample of a row, for a round of this kind."""
        sample = copy.deepcopy(self.dataset.origin_samples[int(row)])
        sample.group_index, sample.index = group, self.sample_index
        self.sample_index += 1
        sample.session_id = str(uuid.uuid4())
        sample.metadata = {**(sample.metadata or {}), "rlplan": {"row": int(row), "round": kind}}
        return sample

    def end(self, machine: Round, rollout_id: int) -> Outcome:
        """End a round of a rollout."""
        outcome = self.schedule.end(machine)
        kept = {number: state for number, state in self._states.items() if number >= rollout_id - 1}
        self._states = {**kept, rollout_id: self.schedule.state()}
        return outcome

    def save(self, rollout_id: Any) -> None:
        """Write slime's state and, in its metadata, the schedule's, as it was after that rollout."""
        if self.planned is not None:
            # Where the next rollout has run already (train_async.py), the state of this one is the one to resume from.
            self.metadata["rlplan"] = self._states.get(rollout_id) or self.schedule.state()
        super().save(rollout_id)

    def load(self, rollout_id: Any = None) -> None:
        """Read both back. Raises InputError if the schedule belongs to another data set or version."""
        super().load(rollout_id)
        if self.planned is None:
            return
        if (state := self.metadata.get("rlplan")) is None:
            if self.args.load is not None and self.sample_offset:
                logger.warning("the checkpoint has no state of a plan's rounds; they begin with a new epoch")
            return
        try:
            self.schedule.restore(state)
        except ValueError as error:
            raise InputError(f"{error}; start without --load, or from the data that it was saved with") from None


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """One rollout of the plan, in slime's form: `RolloutFnTrainOutput`, or of evaluation, which is the framework's own.

    Raises InputError if the settings do not go with the plan, and RuntimeError if the infrastructure failed on all
    prompts of a round. Without `args`, as slime's contract tests call it, nothing is generated: see `_finished_only`.
    """
    base, run = _host("rollout.base_types"), _host("utils.async_utils").run
    if args is None:
        group = run(_finished_only(data_source))
        if evaluation:
            return base.RolloutFnEvalOutput(data={"finished": _evaluated(group)})
        return base.RolloutFnTrainOutput(samples=[group])
    if evaluation:
        return _host(f"rollout.{_ENGINE}_rollout").generate_rollout(args, rollout_id, data_source, evaluation=True)
    if getattr(data_source, "planned", None) is None:
        raise InputError(f"set --data-source-path to {__name__}.PlannedDataSource, with --prompt-data")
    groups, metrics = run(_Rollout(args, data_source, rollout_id).run())
    return base.RolloutFnTrainOutput(samples=groups, metrics=metrics)


def planned_token_mean(total_lengths: Any, response_lengths: Any, loss_masks: Any, per_token: bool) -> Any:
    """For `--custom-pg-loss-reducer-function-path`: sums tokens and divides by the plan's tokens of a plain step.

    slime divides what a reducer returns by the samples of a step. So a token weighs the same in short and long rounds
    and in long and short responses, where slime's default makes a *sample* weigh the same. Reads the plan named by
    RLPLAN_PLAN, since slime passes reducers no arguments.
    """
    if per_token:
        raise InputError("planned_token_mean divides by the plan's tokens: leave out --calculate-per-token-loss")
    import torch

    from ...plans.schema.plan import load_plan

    job = load_plan(_plan_path(None)).job
    tokens_a_sample = job.loss.tokens / (job.issue.prompts_per_step * job.issue.samples_per_prompt)
    divisors = [torch.tensor(tokens_a_sample, device=mask.device) for mask in loss_masks]
    reducer = _host("backends.megatron_utils.cp_utils").get_sum_of_sample_mean
    return reducer(total_lengths, response_lengths, loss_masks, divisors, False)


class _Rollout:
    """One rollout: rounds until one trains something (nearly always the first), then what slime is to be given."""

    def __init__(self, args: Any, source: PlannedDataSource, rollout_id: int) -> None:
        self._args, self._source, self._rollout_id = args, source, rollout_id
        self._own = _host(f"rollout.{_ENGINE}_rollout")
        self._status = _host("utils.types").Sample.Status
        self._state = self._own.GenerateState(args)
        # With a reward of the whole group, `generate_and_rm` decodes and leaves rewards alone.
        self._decode_args = copy.copy(args)
        self._decode_args.group_rm = True
        self._kind = ""
        self._groups: dict[int, int] = {}  # draw of the round -> slime's number of the group

    async def run(self) -> tuple[list[list[Any]], dict[str, float]]:
        """Groups to train, in the order of slime's numbers, and metrics."""
        while True:
            if (last := getattr(self._args, "num_rollout", None)) is not None:
                drain_in_time(self._source.schedule, last - self._rollout_id)
            machine = self._source.schedule.begin()
            self._kind, self._groups = machine.kind, {}
            decoded = await drive_round(machine, self._decode, self._score)
            outcome = self._source.end(machine, self._rollout_id)
            if len(decoded) < outcome.issued_samples:
                await self._until_idle()
            for row, reason in outcome.failures.items():
                logger.warning("row %d: the infrastructure failed on a sample: %s", int(row), reason)
            groups = [[decoded[key].sample for key in group.keys] for group in outcome.trained]
            if groups:
                break
            if len(outcome.prompts[Fate.FAILED]) == len(outcome.taken):
                raise RuntimeError(f"all prompts of a round failed: {next(iter(outcome.failures.values()))}")
        if self._args.group_rm:
            await self._reward_whole_groups(groups)
        groups.sort(key=lambda group: group[0].index)
        metrics = self._metrics(outcome, decoded)
        self._fill(groups)
        if (path := self._args.rollout_sample_filter_path) is not None:
            _host("utils.misc").load_function(path)(self._args, groups)
        return groups, metrics

    async def _decode(self, issue: Issue, before: DecodedSample[Any] | None, max_tokens: int) -> DecodedSample[Any]:
        if before is None:
            draw = issue.key.draw
            if draw not in self._groups:
                self._groups[draw] = self._source.new_group()
            sample = self._source.new_sample(issue.prompt, self._groups[draw], self._kind)
        else:
            sample = before.sample
            sample.status = self._status.ABORTED  # of samples with this status slime continues the tokens
        params = {**self._state.sampling_params, "max_new_tokens": max_tokens}
        sample = await self._own.generate_and_rm(self._decode_args, sample, params, evaluation=False)
        if isinstance(sample, list):
            raise TypeError("a custom generate function made several samples of one; a plan's rounds take one")
        if sample.status is self._status.ABORTED:
            raise EngineGone
        # Where the context is full, a sample ends below the limit of its request, and cannot go on.
        cut = sample.status is self._status.TRUNCATED and sample.response_length >= max_tokens
        return DecodedSample(sample, sample.response_length, cut)

    async def _score(self, sample: Any) -> float:
        if self._args.group_rm:
            return 0.0  # set when the group is complete; the round does not look at it
        if sample.reward is None:
            sample.reward = await self._own.async_rm(self._args, sample)
        return float(sample.get_reward_value(self._args))

    async def _reward_whole_groups(self, groups: list[list[Any]]) -> None:
        for group in groups:
            rewards = await self._own.batched_async_rm(self._args, group)
            for sample, reward in zip(group, rewards, strict=True):
                sample.reward = reward

    async def _until_idle(self) -> None:
        """Stop what cancelled requests may have left on the engines, as the framework does it at a rollout's end."""
        router = f"{getattr(self._args, f'{_ENGINE}_router_ip')}:{getattr(self._args, f'{_ENGINE}_router_port')}"
        workers = await self._own.get(f"http://{router}/workers")
        control = _host(f"backends.{_ENGINE}_utils.server_control")
        # Earlier versions of vime have the second only.
        abort = getattr(control, "abort_servers_until_idle", None) or control.abort_inflight_requests
        await abort([worker["url"] for worker in workers["workers"]])

    def _fill(self, groups: list[list[Any]]) -> None:
        """Add groups without loss until there are P, which slime's steps need; the shortest sample's copies."""
        shortest = min((sample for group in groups for sample in group), key=lambda sample: sample.response_length)
        for _ in range(self._args.rollout_batch_size - len(groups)):
            number, group = self._source.new_group(), []
            for _ in range(self._args.n_samples_per_prompt):
                sample = copy.deepcopy(shortest)
                sample.group_index, sample.index = number, self._source.sample_index
                self._source.sample_index += 1
                sample.remove_sample, sample.loss_mask = True, [0] * sample.response_length
                sample.metadata["rlplan"] = {"filling": True}
                group.append(sample)
            groups.append(group)

    def _metrics(self, outcome: Outcome, decoded: dict[SampleKey, DecodedSample[Any]]) -> dict[str, float]:
        trained = sum(sum(group.tokens) for group in outcome.trained)
        return {
            "rollout/rlplan/long_round": float(self._kind == "long"),
            "rollout/rlplan/trained_prompts": float(len(outcome.trained)),
            "rollout/rlplan/filtered_prompts": float(len(outcome.prompts[Fate.FILTERED])),
            "rollout/rlplan/deferred_prompts": float(len(self._source.schedule.deferred)),
            "rollout/rlplan/drawn_samples": float(outcome.issued_samples),
            "rollout/rlplan/finished_tokens_not_trained": float(sum(one.tokens for one in decoded.values()) - trained),
        }


def _plan_path(args: Any) -> str:
    path = getattr(args, "rlplan_plan", None) or os.environ.get(PLAN_VARIABLE)
    if not path:
        raise InputError(
            f"no plan: write `rlplan_plan: PLAN` into the file of --custom-config-path, or set {PLAN_VARIABLE}"
        )
    return str(path)


def _rounds_of(args: Any) -> PlannedRounds:
    """The plan's rounds. Raises InputError if it cannot be read, or the settings do not go with it."""
    path = _plan_path(args)
    filter_path = args.dynamic_sampling_filter_path
    if filter_path is not None and not filter_path.endswith(_EQUAL_REWARDS):
        raise InputError(f"--dynamic-sampling-filter-path {filter_path}: a plan's rounds know check_reward_nonzero_std")
    planned = planned_rounds(
        path,
        prompts_per_step=args.rollout_batch_size,
        samples_per_prompt=args.n_samples_per_prompt,
        max_tokens=args.rollout_max_response_len,
        dynamic_sampling=filter_path is not None,
    )
    exact = planned.spec.mode == "exact"
    clashes = {
        "--partial-rollout: a plan's rounds train no tokens of earlier weights": args.partial_rollout,
        "--group-rm with a dynamic sampling filter: groups are filtered before their reward": args.group_rm
        and filter_path is not None,
        "--custom-generate-function-path: a cutoff needs a generate function that continues a sample's tokens": exact
        and args.custom_generate_function_path is not None,
        f"--{_ENGINE}-enable-deterministic-inference: a prompt that is drawn again must not get the same sample": exact
        and getattr(args, f"{_ENGINE}_enable_deterministic_inference", False),
        "--rollout-all-samples-process-path: rounds do not keep what they drop": args.rollout_all_samples_process_path
        is not None,
    }
    if clash := next((text for text, set_ in clashes.items() if set_), None):
        raise InputError(f"{clash}; leave it out, or use the framework's own rollout function")
    if args.calculate_per_token_loss and planned.spec.mode != "sync":
        logger.warning(
            "--calculate-per-token-loss divides by a step's own tokens: tokens of a long round weigh less than "
            "those of a short one; leave it out, or set --custom-pg-loss-reducer-function-path %s.planned_token_mean",
            __name__,
        )
    return planned


async def _finished_only(data_source: Any) -> list[Any]:
    """A round of one prompt whose samples the source gives finished and with rewards; others are left out."""
    unfinished = (_host("utils.types").Sample.Status.PENDING, _host("utils.types").Sample.Status.ABORTED)
    group = [sample for sample in data_source.get_samples(1)[0] if sample.status not in unfinished]
    if not group:
        return []

    async def decode(issue: Issue, before: DecodedSample[Any] | None, max_tokens: int) -> DecodedSample[Any]:
        sample = group[issue.key.sample]
        return DecodedSample(sample, sample.response_length, False)

    async def score(sample: Any) -> float:
        return float(sample.reward)

    longest = max(1, max(sample.response_length for sample in group))
    machine = RoundSpec("sync", 1, len(group), longest, 1, len(group)).short().machine(["0"])
    decoded = await drive_round(machine, decode, score)
    return [decoded[key].sample for key in machine.outcome().trained[0].keys]


def _evaluated(group: list[Any]) -> dict[str, list[Any]]:
    """slime's form of an evaluation."""
    truncated = _host("utils.types").Sample.Status.TRUNCATED
    return {
        "rewards": [sample.reward for sample in group],
        "truncated": [sample.status is truncated for sample in group],
        "samples": group,
    }
