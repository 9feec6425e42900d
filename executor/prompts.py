"""The job's prompts as tokens, and responses back as text, by the policy's own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..plans.data import read_prompts
from ..plans.errors import InputError
from .rollout import PromptText


def load_tokenizer(model_path: str) -> Any:
    """The Hugging Face tokenizer of the policy. Raises InputError if it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"no tokenizer to load ({reason}); give a Hugging Face model folder or hub id", model_path
        ) from (error)


def load_prompts(path: Path, tokenizer: Any, max_prompt_tokens: int) -> dict[str, PromptText]:
    """Prompts by id, tokenized; chat messages go through the tokenizer's chat template.

    Raises InputError for a prompt of more than `max_prompt_tokens` tokens: cutting it would change the task.
    """
    prompts: dict[str, PromptText] = {}
    for row in read_prompts(path):
        if isinstance(row.prompt, str):
            text = row.prompt
            tokens = tokenizer(text)["input_ids"]
        else:
            if not getattr(tokenizer, "chat_template", None):
                raise InputError(
                    f"prompt {row.id!r} is chat messages and the model's tokenizer has no chat template; write text",
                    str(path),
                )
            text = tokenizer.apply_chat_template(row.prompt, add_generation_prompt=True, tokenize=False)
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise InputError(f"prompt {row.id!r} has no tokens; drop the row", str(path))
        if len(tokens) > max_prompt_tokens:
            raise InputError(
                f"prompt {row.id!r} has {len(tokens)} tokens, more than rollout.max_prompt_tokens = "
                f"{max_prompt_tokens}; raise the limit or drop the row",
                str(path),
            )
        prompts[row.id] = PromptText(row.id, text, tuple(tokens), row.answer)
    return prompts
