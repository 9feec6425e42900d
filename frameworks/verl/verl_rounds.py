"""What the plug-in for verl needs of a plan, without verl: which settings fit, and the rounds of a step.

A step of verl takes rounds of the schedule until one trains a group (a long round by queue may find none), and updates
the weights once. All rounds of a step decode with the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plans.yaml.errors import InputError, RunFailed
from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate, Outcome, TrainedGroup
from ...rounds.machines.round import Round
from ...rounds.schedule import Schedule
from ..plan_rounds import PlannedRounds, drain_in_time, planned_rounds

STATE = "rlplan.json"
"""The schedule's state, in the folder of each of verl's checkpoints."""

MOST_REASON = 300
"""Characters of the reason with which a run ends."""

_PLAN = "trainer.v1.rlplan.plan"
_MANAGER = "rlplan.frameworks.verl.verl_workers.PlannedManager"
_BUFFER = ("pkg://rlplan.frameworks.verl.verl_trainer", "RoundBuffer")


@dataclass(frozen=True, slots=True)
class TrainedData:
    """A group to train: its prompt, and the keys of its samples' data in verl's queue."""

    prompt: str
    keys: tuple[str, ...]


def group_uid(step: int, round_number: int, prompt: str, draw: int) -> str:
    """The uid of a draw, by which verl groups samples; without `_`, at which verl splits the keys of its queue."""
    return f"{step}.{round_number}.{prompt}.{draw}"


def sample_key(uid: str, sample: int) -> str:
    """The key under which verl's queue holds the data of a sample of one turn."""
    return f"{uid}_{sample}_0"


# -- settings ----------------------------------------------------------------------------------------------------------


def setting(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path of verl's configuration; `default` if it is not there, or null."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) or hasattr(value, "get") else None
        if value is None:
            return default
    return value


def plan_of(config: Mapping[str, Any]) -> PlannedRounds:
    """The plan that verl's configuration names, for its sizes.

    Raises InputError if it names none, or asks for something that rounds of a plan do not do in verl.
    """
    path = setting(config, _PLAN)
    if path is None:
        raise InputError(f"{_PLAN} is missing: add +{_PLAN}=plan.yaml to verl's command line")
    rollout, dynamic = "actor_rollout_ref.rollout", bool(setting(config, "algorithm.filter_groups.enable"))
    agent = setting(config, f"{rollout}.agent.default_agent_loop", "single_turn_agent")
    refused = {
        f"{rollout}.agent.default_agent_loop={agent}": (
            agent != "single_turn_agent",
            "a cutoff is a limit of one request, so rounds of a plan are for single_turn_agent",
        ),
        "skip.rollout_tq.enable=true": (bool(setting(config, "skip.rollout_tq.enable")), "set it to false"),
        f"algorithm.filter_groups.metric={setting(config, 'algorithm.filter_groups.metric')}": (
            dynamic and setting(config, "algorithm.filter_groups.metric") != "reward",
            "groups are filtered by their rewards: set it to reward",
        ),
        "reward.reward_model.enable=true": (
            dynamic
            and bool(setting(config, "reward.reward_model.enable"))
            and not setting(config, "reward.reward_model.enable_resource_pool"),
            "filtered groups need rewards while the round runs: set reward.reward_model.enable_resource_pool=true",
        ),
    }
    for what, (is_set, remedy) in refused.items():
        if is_set:
            raise InputError(f"{what} does not go with trainer.v1.trainer_mode=rlplan: {remedy}")
    return planned_rounds(
        Path(path),
        prompts_per_step=int(setting(config, "data.train_batch_size")),
        samples_per_prompt=int(setting(config, f"{rollout}.n")),
        max_tokens=int(setting(config, f"{rollout}.response_length")),
        dynamic_sampling=dynamic,
    )


def name_parts(config: MutableMapping[str, Any]) -> None:
    """Name the plug-in's manager and replay buffer where verl's loaders look for them.

    Raises InputError if the configuration names others.
    """
    agent = setting(config, "actor_rollout_ref.rollout.agent")
    sampler = setting(config, "trainer.v1.sampler.custom_sampler")
    for where, key, path, value in (
        (agent, "agent_loop_manager_class", "actor_rollout_ref.rollout.agent", _MANAGER),
        (sampler, "path", "trainer.v1.sampler.custom_sampler", _BUFFER[0]),
        (sampler, "name", "trainer.v1.sampler.custom_sampler", _BUFFER[1]),
    ):
        if where.get(key) not in (None, value):
            raise InputError(
                f"{path}.{key}={where[key]} does not go with trainer.v1.trainer_mode=rlplan, which brings its own; "
                "leave the key away"
            )
        where[key] = value


def divide_by_constants(config: MutableMapping[str, Any], planned: PlannedRounds) -> str | None:
    """Set a loss that divides by what a round happens to hold to the plan's constants; returns what was changed.

    verl's `seq-mean-token-sum-norm` divides the sum over a mini-batch by its planned number of samples (`ppo_mini_batch
    _size` n, however many there are) and by `loss_scale_factor`; the product is the plan's tokens of a step, by
    mini-batch. `token-mean` divides by the tokens of the mini-batch, so a token of a long round would weigh less, and
    `seq-mean-token-sum-norm` without a factor by the longest response of a micro-batch. The other modes divide by
    constants, or a response by its own length: they stay.
    """
    planned_samples = planned.spec.prompts_per_step * planned.spec.samples_per_prompt
    changed = []
    for path in ("actor_rollout_ref.actor", "critic"):
        part = setting(config, path)
        if part is None or part.get("loss_agg_mode") not in ("token-mean", "seq-mean-token-sum-norm"):
            continue
        if part["loss_agg_mode"] == "token-mean" or part.get("loss_scale_factor") is None:
            part["loss_agg_mode"] = "seq-mean-token-sum-norm"
            part["loss_scale_factor"] = max(1, round(planned.loss.tokens / planned_samples))
            changed.append(f"{path}: seq-mean-token-sum-norm, loss_scale_factor {part['loss_scale_factor']}")
    return "; ".join(changed) or None


# -- rounds ------------------------------------------------------------------------------------------------------------


class VerlRounds:
    """The schedule of a run of verl: prompts are the rows of its data set, by number.

    Raises InputError if the data set is too small for the plan's rounds.
    """

    def __init__(self, planned: PlannedRounds, rows: int, seed: int) -> None:
        if rows < planned.prompts_wanted:
            raise InputError(
                f"the data set has {rows} rows, and rounds of the plan need {planned.prompts_wanted}; "
                "take more data, or solve for a smaller step"
            )
        self.planned, self.rows = planned, rows
        width = len(str(rows - 1))
        self.schedule = Schedule(planned.spec, [f"{row:0{width}d}" for row in range(rows)], seed)

    def step(
        self, step: int, steps_left: int, drive: Callable[[Round, Callable[[str, int], str]], None]
    ) -> tuple[list[TrainedData], dict[str, float]]:
        """Take rounds until one trains a group; returns the groups, and figures for verl's log.

        `drive` runs a round to its end, with the uid of a prompt's draw. `steps_left` counts this step; the last ones
        drain the queue. Raises RunFailed if a round trains nothing and its prompts failed.
        """
        figures: dict[str, float] = dict.fromkeys(("rounds", "returned", "failed", "issued_samples"), 0)
        while True:
            schedule = self.schedule
            drain_in_time(schedule, steps_left)
            number = schedule.round_number
            machine = schedule.begin()

            def uid(prompt: str, draw: int, number: int = number) -> str:
                return group_uid(step, number, prompt, draw)

            drive(machine, uid)
            outcome = schedule.end(machine)
            figures["rounds"] += 1
            figures["returned"] += len(outcome.prompts[Fate.RETURNED])
            figures["failed"] += len(outcome.prompts[Fate.FAILED])
            figures["issued_samples"] += outcome.issued_samples
            if outcome.trained:
                figures |= {
                    "long_round": float(machine.kind == "long"),
                    "trained_prompts": len(outcome.trained),
                    "deferred_prompts": len(schedule.deferred),
                    "exhausted_prompts": len(outcome.exhausted),
                    "epoch": schedule.epoch,
                }
                return [_data_of(group, uid) for group in outcome.trained], {
                    f"rlplan/{name}": value for name, value in figures.items()
                }
            if outcome.failures:
                raise RunFailed(_all_failed(outcome))

    def save(self, folder: Path) -> None:
        """Write the state between two steps into a checkpoint's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{STATE}.part"
        part.write_text(json.dumps({"rows": self.rows, "schedule": self.schedule.state()}), encoding="utf-8")
        part.replace(folder / STATE)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint's folder. Raises InputError if it has no state, or one of other data."""
        file = folder / STATE
        if not file.exists():
            raise InputError(
                f"{folder}: the checkpoint has no {STATE}, so another trainer_mode wrote it; begin anew with "
                "trainer.resume_mode=disable, or go on with the mode that wrote it"
            )
        state = json.loads(file.read_text(encoding="utf-8"))
        try:
            self.schedule.restore(state["schedule"])
        except (KeyError, ValueError) as error:
            raise InputError(f"{file}: {error} (rows then {state.get('rows')}, now {self.rows})") from error


def _data_of(group: TrainedGroup, uid: Callable[[str, int], str]) -> TrainedData:
    def key_of(key: SampleKey) -> str:
        return sample_key(uid(group.prompt, key.draw), key.sample)

    return TrainedData(group.prompt, tuple(map(key_of, group.keys)))


def _all_failed(outcome: Outcome) -> str:
    prompt, reason = next(iter(outcome.failures.items()))
    reason = " ".join(reason.split())[-MOST_REASON:]  # the cause of an actor's error is its last line
    return (
        f"no prompt of the round could be decoded and scored; of {len(outcome.failures)} that failed, row {prompt}: "
        f"{reason}; see the logs of verl's servers and reward workers"
    )
