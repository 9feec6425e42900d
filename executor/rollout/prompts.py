"""The job's prompts as tokens, by the policy's own tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...plans.files.prompt_rows import Prompt, read_prompts
from ...plans.schema.job import RolloutSpec, RowSets, pretrained
from ...plans.schema.reward_spec import RewardKind, RewardSpec
from ...plans.yaml.errors import InputError


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as the engines (token ids) and the reward (text, answer, sources) need it."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    answer: Any
    sources: tuple[str, ...] = ()


def load_tokenizer(model_path: str) -> Any:
    """The Hugging Face tokenizer of the policy.

    Raises InputError if it cannot be loaded, or has tokens that the policy has no embedding for (another model's).
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        name, revision = pretrained(model_path)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **revision)
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **revision)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"no tokenizer to load ({reason}); give a Hugging Face model folder or hub id", model_path
        ) from (error)
    rows = getattr(getattr(config, "text_config", config), "vocab_size", None)
    # The embedding may well have more rows than the tokenizer has tokens; they are rounded up to what GPUs like.
    last = max(tokenizer.get_vocab().values(), default=-1)
    if rows is not None and last >= rows:
        token = tokenizer.convert_ids_to_tokens(last)
        raise InputError(
            f"the tokenizer has token {last} ({token!r}), but the model's embedding has {rows} rows (vocab_size in "
            "config.json); put the model's own tokenizer there, or resize the model's embeddings and save it again",
            model_path,
        )
    return tokenizer


def stops_must_be_written(rollout: RolloutSpec, tokenizer: Any) -> None:
    """Raises InputError for a stop that no response can have: a text with a special token in it, which texts of
    responses leave out, or a token that the model does not have."""
    if not rollout.stop and not rollout.stop_token_ids:
        return
    special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=False))
    for text in rollout.stop:
        if (token := next((each for each in special if each in text), None)) is not None:
            raise InputError(
                f"rollout.stop: {text!r} has the special token {token!r}, which no response's text has; write its "
                f"number into rollout.stop_token_ids: [{special[token]}]"
            )
    if (last := max(rollout.stop_token_ids, default=-1)) >= len(tokenizer):
        raise InputError(
            f"rollout.stop_token_ids: the model's tokenizer has no token {last}, but {len(tokenizer)} tokens"
        )


def response_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    """A response as rewards read it: without the tokens that only end or pad it."""
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


def load_prompts(
    path: Path | RowSets,
    tokenizer: Any,
    max_prompt_tokens: int,
    reward: RewardSpec | RewardKind = "function",
    template: Mapping[str, Any] | None = None,
) -> dict[str, PromptText]:
    """Prompts by id, tokenized; chat messages go through the tokenizer's chat template, which gets the variables
    `template` beside a row's own. Answers are those that the `reward` gets; that it can read them was seen before
    (`enough_prompts`).

    Raises InputError for a prompt of more than `max_prompt_tokens` tokens, since cutting it would change the task, for
    one of which the chat template would leave something out, and for variables that it does not read.
    """
    prompts: dict[str, PromptText] = {}
    rows = read_prompts(path, reward, "no")
    if template:
        must_be_read(template, tokenizer)
        if all(isinstance(row.prompt, str) for row in rows):
            raise InputError(
                "all prompts are text, which no chat template sees; remove data.chat_template_kwargs", str(path)
            )
        rows = [replace(row, template={**template, **row.template}) for row in rows]
    for row in rows:
        if isinstance(row.prompt, str):
            text = row.prompt
            tokens = tokenizer(text)["input_ids"]
        else:
            text = _rendered(row, tokenizer, path)
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise InputError(f"prompt {row.id!r} has no tokens; drop the row", str(path))
        if len(tokens) > max_prompt_tokens:
            raise InputError(
                f"prompt {row.id!r} has {len(tokens)} tokens, more than rollout.max_prompt_tokens = "
                f"{max_prompt_tokens}; raise the limit or drop the row",
                str(path),
            )
        prompts[row.id] = PromptText(row.id, text, tuple(tokens), row.answer, row.sources)
    return prompts


def must_be_read(template: Mapping[str, Any], tokenizer: Any) -> None:
    """Raises InputError where the model's chat template does not read one of a job's variables."""
    if (unread := _unread(template, getattr(tokenizer, "chat_template", None) or "")) is not None:
        raise InputError(
            f"data.chat_template_kwargs: the model's chat template does not read {unread!r}; remove it, or write it as "
            "the template has it"
        )


def _unread(names: Iterable[str], template: Any) -> str | None:
    """The first of some variables that a chat template does not name; None if it names all."""
    return next((name for name in names if not re.search(rf"\b{re.escape(name)}\b", str(template))), None)


def _rendered(row: Prompt, tokenizer: Any, path: Path | RowSets) -> str:
    """The text of chat messages by the model's template. Raises InputError if it has none, refuses them, or would drop
    a message of the system or one of the row's keys (a variable that a template does not name has no effect)."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise InputError(
            f"prompt {row.id!r} is chat messages and the model's tokenizer has no chat template; write text", str(path)
        )
    if (unread := _unread(row.template, template)) is not None:
        raise InputError(
            f"prompt {row.id!r} has {unread!r}, which the model's chat template does not read; remove it", str(path)
        )
    try:
        text = str(
            tokenizer.apply_chat_template(row.prompt, add_generation_prompt=True, tokenize=False, **row.template)
        )
    except Exception as error:  # a template raises what it likes
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"prompt {row.id!r} is refused by the model's chat template ({why}); change its messages", str(path)
        ) from error
    for message in row.prompt:
        assert isinstance(message, dict), "text has no template"
        # Templates skip roles that they do not know without a word.
        if message["role"] in ("system", "developer") and message["content"].strip() not in text:
            raise InputError(
                f"prompt {row.id!r} has a message of role {message['role']!r}, which the model's chat template leaves "
                "out; put its text into the user's message",
                str(path),
            )
    return text
