"""Steps of a drafting engine that have no drafts to verify take the path of an engine without drafts.

vLLM (0.32) prepares every step of an engine that can draft for its rejection sampler, which samples twice and gathers
log-probs over all tokens, even where no sample has a draft: about a sixth of a decode step of a small model on a CPU.
Its plain sampler draws the same tokens for requests with seeds.
"""

from __future__ import annotations

from typing import Any


def sample_plainly(runner: Any) -> None:
    """Have vLLM's model runner prepare steps without drafts as one that cannot draft.

    Models with recurrent states are left as they are: vLLM reads these states at offsets that only steps prepared for
    drafts have.
    """
    if runner.model_config.is_hybrid or runner.model_config.is_attention_free:
        return
    prepare = runner._prepare_inputs

    def prepared(scheduled: Any, *arguments: Any, **options: Any) -> Any:
        if scheduled.scheduled_spec_decode_tokens:
            return prepare(scheduled, *arguments, **options)
        drafts, runner.speculative_config = runner.speculative_config, None
        try:
            return prepare(scheduled, *arguments, **options)
        finally:
            runner.speculative_config = drafts

    runner._prepare_inputs = prepared
