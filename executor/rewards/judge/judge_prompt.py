"""What a judge reads of a sample, as tokens of its own model, and what its verdicts are worth.

The rubric, which is the template up to its first placeholder, is the same in every question, so an engine with a prefix
cache reads it once. A verdict is not searched for in free text: the engine can write nothing else (structured output).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....plans.yaml.errors import InputError

MARGIN_TOKENS = 64
"""Room for what a chat template adds, and for tokens that join differently beside each other."""


class JudgePrompt:
    """Questions and verdicts of one judge.

    Args:
        template: with `{prompt}`, `{response}`, `{answer}`, as the schema has checked.
        worth: of each verdict, by its text.
        tokenizer: Hugging Face's, of the judge's model.
        context_tokens: that question and verdict may have together.

    Raises InputError if the tokenizer cannot write a verdict.
    """

    def __init__(self, template: str, worth: Mapping[str, float], tokenizer: Any, context_tokens: int) -> None:
        self._template, self._worth, self._tokenizer = template, dict(worth), tokenizer
        self.choices = tuple(self._worth)
        longest = 0
        for verdict in self.choices:
            tokens = tokenizer(verdict, add_special_tokens=False)["input_ids"]
            if self._text(tokens) != verdict:
                raise InputError(
                    f"the judge's tokenizer cannot write the verdict {verdict!r} (it would write "
                    f"{self._text(tokens)!r}); choose other words (verdicts), or another judge"
                )
            longest = max(longest, len(tokens))
        self.verdict_tokens = 1 if longest == 1 else longest + 1
        """Most tokens of a verdict; a longer one than a token needs the end of the text, to tell 1 from 10."""
        self._most = context_tokens - self.verdict_tokens

    def question(self, prompt: str, response: str, answer: Any) -> tuple[int, ...]:
        """The tokens that the judge reads. Of a response that does not fit, the beginning is left out."""
        tokens = self._tokens(prompt, response, answer)
        while len(tokens) > self._most and response:
            beyond = max(1, round(len(response) * (len(tokens) - self._most) / len(tokens)))
            response = response[beyond:]
            tokens = self._tokens(prompt, response, answer)
        return tokens[-self._most :]

    def value(self, tokens: list[int]) -> float:
        """What a verdict is worth. Raises ValueError if it is none."""
        text = self._text(tokens)
        if text not in self._worth:
            raise ValueError(f"the judge wrote {text[:80]!r}, which is none of its verdicts")
        return self._worth[text]

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True)).strip()

    def _tokens(self, prompt: str, response: str, answer: Any) -> tuple[int, ...]:
        shown = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        text = self._template.format(prompt=prompt, response=response, answer=shown)
        if getattr(self._tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": text}]
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return tuple(self._tokenizer(text)["input_ids"])


def template_tokens(template: str, tokenizer: Any) -> int:
    """Tokens of a template without what stands for its placeholders, and room for what a chat template adds."""
    bare = template.format(prompt="", response="", answer="")
    return len(tokenizer(bare)["input_ids"]) + MARGIN_TOKENS
