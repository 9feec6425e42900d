"""What a plug-in takes from plan.yaml: the kinds of round, and the constants by which the loss divides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..plans.schema.plan import load_plan
from ..plans.schema.planned_job import LossPlan
from ..plans.yaml.errors import InputError
from ..rounds.round_spec import RoundSpec


@dataclass(frozen=True, slots=True)
class PlannedRounds:
    """The rounds of a plan for `job`, and the divisors of its loss (in samples and in tokens)."""

    job: str
    spec: RoundSpec
    loss: LossPlan


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
    return PlannedRounds(planned.name, planned.round_spec(max_tokens, dynamic_sampling), planned.loss)
