"""Training samples: finished, scored responses, in complete groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One response with its reward.

    Attributes:
        prompt_id: the prompt; samples of one prompt form a group.
        sample: number of the sample within its group.
        prompt_tokens: token ids of the prompt, at least one.
        response_tokens: token ids of the response, the end-of-sequence token included if one was sampled.
        logprobs: the engine's log-probability of each response token at the sampling temperature.
        reward: finite.
        truncated: the response was cut at the cap on tokens and did not end by itself.
    """

    prompt_id: str
    sample: int
    prompt_tokens: list[int]
    response_tokens: list[int]
    logprobs: list[float]
    reward: float
    truncated: bool

    @property
    def tokens(self) -> int:
        """Length of prompt and response."""
        return len(self.prompt_tokens) + len(self.response_tokens)


def sorted_groups(groups: Sequence[Sequence[TrainSample]], samples_per_prompt: int) -> list[list[TrainSample]]:
    """The groups by prompt id, each by sample number: the order in which the update sees them.

    Completion order ends here; everything after it is a function of the set of samples.
    Asserts that every group is complete (`samples_per_prompt` different samples of one prompt), that no prompt comes
    twice, and that each response token has a log-probability.
    """
    result = sorted((sorted(group, key=lambda s: s.sample) for group in groups), key=lambda group: group[0].prompt_id)
    prompts = [group[0].prompt_id for group in result]
    assert len(set(prompts)) == len(prompts), f"a prompt comes twice in one step: {prompts}"
    for group in result:
        name = group[0].prompt_id
        assert {s.prompt_id for s in group} == {name}, f"the group of {name} holds samples of other prompts"
        assert len({s.sample for s in group}) == len(group) == samples_per_prompt, (
            f"the group of {name} has samples {[s.sample for s in group]}, not {samples_per_prompt} different ones"
        )
        for s in group:
            assert s.prompt_tokens, f"{name}/{s.sample} has no prompt"
            assert len(s.logprobs) == len(s.response_tokens), (
                f"{name}/{s.sample}: {len(s.response_tokens)} tokens, {len(s.logprobs)} log-probabilities"
            )
            assert math.isfinite(s.reward), f"{name}/{s.sample} has reward {s.reward}"
    return result
