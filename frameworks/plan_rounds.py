"""What a plug-in takes from plan.yaml: the kinds of round, and the constants by which the loss divides; and what all
plug-ins do between rounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..plans.schema.plan import load_plan
from ..plans.schema.planned_job import LossPlan
from ..plans.yaml.errors import InputError
from ..rounds.round_spec import RoundSpec, prompts_wanted
from ..rounds.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PlannedRounds:
    """The rounds of a plan, and the divisors of its loss (in samples and in tokens)."""

    spec: RoundSpec
    loss: LossPlan

    @property
    def prompts_wanted(self) -> int:
        """How many prompts a data set must have for these rounds."""
        spec = self.spec
        queue = spec.queue.prompts if spec.queue else None
        return prompts_wanted(spec.mode, spec.prompts_per_step, spec.short_prompts, spec.long_share, queue=queue)


def planned_rounds(
    path: str | Path, *, prompts_per_step: int, samples_per_prompt: int, max_tokens: int, dynamic_sampling: bool = False
) -> PlannedRounds:
    """The rounds of the plan at `path` for a trainer that is configured so.

    Raises InputError if the plan cannot be read, or is of another size of step, or cuts responses beyond `max_tokens`.
    """
    planned = load_plan(path).job
    asked = {"prompts a step": prompts_per_step, "samples a prompt": samples_per_prompt}
    has = {"prompts a step": planned.issue.prompts_per_step, "samples a prompt": planned.issue.samples_per_prompt}
    for what, size in has.items():
        if asked[what] != size:
            raise InputError(
                f"{path}: the plan is for {size} {what}, and the trainer is set to {asked[what]}; "
                "set the trainer to the plan's, or solve for the trainer's"
            )
    cutoff = planned.rounds.short.cutoff_tokens
    if cutoff is not None and cutoff >= max_tokens:
        raise InputError(
            f"{path}: the plan's cutoff is {cutoff} tokens, and the trainer's responses end at {max_tokens}; solve "
            f"for max_response_tokens {max_tokens}"
        )
    return PlannedRounds(planned.round_spec(max_tokens, dynamic_sampling), planned.loss)


def drain_in_time(schedule: Schedule, steps_left: int) -> None:
    """Call it before each round: the last steps of a run (`steps_left`, the next one included) train what waits."""
    if schedule.draining and not schedule.deferred:
        schedule.restore(schedule.state())  # drained early: fresh prompts fill the steps that are left
    if schedule.deferred and steps_left <= schedule.rounds_owed:
        schedule.drain()
