"""What a judge reads of a sample, as tokens of its own model, and what its verdicts are worth.

Invariants:
- what stands for a placeholder is text and nothing else: no control token of the judge's model (the end of a turn, a
  role) comes from it, whatever a response writes;
- the rubric, which is the template up to its first placeholder, is the same tokens in every question, so an engine with
  a prefix cache reads it once;
- a verdict is not searched for in free text: the engine can write nothing else (structured output).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from ..schema.job import Job, judge_folder
from ..schema.reward_spec import PLACEHOLDERS
from ..yaml.errors import InputError
from .model_config import model_config


def fitting_prompt(job: Job, tokenizer: Any, most_tokens: int, model: str) -> JudgePrompt:
    """The prompt of the job's judge, whose model reads `most_tokens` tokens at most.

    Raises InputError if a question may have more, or the tokenizer cannot write a verdict.
    """
    part = job.reward.judge
    assert part is not None and part.prompt is not None, "the job has a judge"
    try:
        prompt = JudgePrompt(part.prompt, part.worth(), tokenizer, most_tokens)
    except InputError as error:
        raise InputError(error.message, model) from error
    own, longest = prompt.frame_tokens + prompt.verdict_tokens, job.rollout.longest_tokens
    if own + longest > most_tokens:
        raise InputError(
            f"the judge's model reads at most {most_tokens} tokens, and a question may have {own + longest}: {own} of "
            f"its prompt and verdict and {longest} of the longest sample; take another judge, or a shorter prompt",
            model,
        )
    return prompt


def judge_model_fault(job: Job, job_path: str | Path) -> InputError | None:
    """Why the model of the job's judge is of no use; None if it is, or if there is none on this machine.

    What its tokenizer does is seen only where transformers is installed.
    """
    folder = judge_folder(job, job_path)
    if folder is None:
        return None
    try:
        config = model_config(folder)
        language = config.get("text_config", config)
        most = language.get("max_position_embeddings") if isinstance(language, dict) else None
        longest = job.rollout.longest_tokens
        most = most if type(most) is int else 2**40
        if longest > most:
            return InputError(
                f"the judge's model reads at most {most} tokens, and a sample may have {longest}; take another judge"
            )
        if find_spec("transformers") is not None:
            fitting_prompt(job, _tokenizer(folder), most, str(folder))
    except InputError as error:
        return error
    return None


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"the judge's model has no tokenizer to load ({reason}); take another judge") from error


_MARK = "RLPLAN-VALUE-OF-{}-HERE"
_MARKS = re.compile(_MARK.format("(" + "|".join(PLACEHOLDERS) + ")"))


class JudgePrompt:
    """Questions and verdicts of one judge.

    Args:
        template: with `{prompt}`, `{response}`, `{answer}`, as the schema has checked.
        worth: of each verdict, by its text.
        tokenizer: Hugging Face's, of the judge's model.
        context_tokens: that question and verdict may have together.

    Raises InputError if the tokenizer cannot write a verdict, or its chat template does not show a user's message.
    """

    def __init__(self, template: str, worth: Mapping[str, float], tokenizer: Any, context_tokens: int) -> None:
        self._worth, self._tokenizer = dict(worth), tokenizer
        self.choices = tuple(self._worth)
        longest = 0
        for verdict in self.choices:
            tokens = self._encode(verdict)
            if self._text(list(tokens)) != verdict:
                raise InputError(
                    f"the judge's tokenizer cannot write the verdict {verdict!r} (it would write "
                    f"{self._text(list(tokens))!r}); choose other words (verdicts), or another judge"
                )
            longest = max(longest, len(tokens))
        self.verdict_tokens = 1 if longest == 1 else longest + 1
        """Most tokens of a verdict; a longer one than a token needs the end of the text, to tell 1 from 10."""
        self._control = _control_tokens(tokenizer)
        self._control_texts = _any_of(text for text in self._control.values() if text.strip())
        self._texts, self._slots = self._frame(template)
        self.frame_tokens = sum(map(len, self._texts))
        """Tokens of a question beside what stands for its placeholders."""
        self._room = context_tokens - self.verdict_tokens - self.frame_tokens

    def question(self, prompt: str, response: str, answer: Any) -> tuple[int, ...]:
        """The tokens that the judge reads. Of a response that does not fit, the beginning is left out; it keeps half
        of the room at least, and then the beginnings of answer and prompt are left out, too."""
        shown = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        values = {"prompt": prompt, "response": response, "answer": shown}
        found = [self._value_tokens(space + values[name]) for name, space in self._slots]
        of_response = [place for place, (name, _) in enumerate(self._slots) if name == "response"]
        of_others = [place for place, (name, _) in enumerate(self._slots) if name != "response"]
        room, wanted = max(0, self._room), sum(len(found[place]) for place in of_others)
        each = max(room - wanted, room // 2) // len(of_response)
        for place in (*of_response, *of_others):
            most = each if place in of_response else room
            found[place] = found[place][max(0, len(found[place]) - most) :]
            room -= len(found[place])
        asked = list(self._texts[0])
        for value, text in zip(found, self._texts[1:], strict=True):
            asked += (*value, *text)
        return tuple(asked)

    def value(self, tokens: list[int]) -> float:
        """What a verdict is worth. Raises ValueError if it is none."""
        text = self._text(tokens)
        if text not in self._worth:
            raise ValueError(f"the judge wrote {text[:80]!r}, which is none of its verdicts")
        return self._worth[text]

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True)).strip()

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def _value_tokens(self, text: str) -> tuple[int, ...]:
        """Tokens of text that comes from a sample. Text that spells a control token is split, so that it becomes
        ordinary tokens; a control token that appears all the same is dropped."""
        tokens = (token for piece in self._pieces(text) for token in self._encode(piece))
        return tuple(token for token in tokens if token not in self._control)

    def _pieces(self, text: str) -> list[str]:
        """The text in pieces, none of which has the text of a control token in it."""
        pieces, begin = [], 0
        while (found := self._control_texts.search(text, begin)) is not None:
            cut = found.start() + 1
            pieces.append(text[begin:cut])
            begin = cut
        return [*pieces, text[begin:]]

    def _frame(self, template: str) -> tuple[list[tuple[int, ...]], list[tuple[str, str]]]:
        """(the template's own tokens before, between and after its placeholders; of each of these its name, and the
        space before it, which is read with its value: words have tokens with the space in front)."""
        text = template.format(**{name: _MARK.format(name) for name in PLACEHOLDERS})
        wanted = _MARKS.findall(text)
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = ()
        if getattr(self._tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": text}]
            try:
                text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            except (TemplateError, ValueError, TypeError, KeyError) as error:
                raise InputError(
                    f"the chat template of the judge's tokenizer fails ({error}); take another judge"
                ) from error
            if _MARKS.findall(text) != wanted:
                raise InputError(
                    "the chat template of the judge's tokenizer does not show a user's message; take another judge"
                )
        else:
            plain, whole = self._encode("x"), tuple(self._tokenizer("x")["input_ids"])
            starts = (place for place in range(len(whole)) if whole[place : place + len(plain)] == plain)
            start = next(starts, 0)
            before, after = whole[:start], whole[start + len(plain) :]
        split = _MARKS.split(text)
        names, own = split[1::2], split[0::2]
        spaces = [" " if text.endswith(" ") else "" for text in own[:-1]]
        texts = [self._encode(text.removesuffix(space)) for text, space in zip(own, [*spaces, ""], strict=True)]
        texts[0], texts[-1] = before + texts[0], texts[-1] + after
        return texts, list(zip(names, spaces, strict=True))


def _control_tokens(tokenizer: Any) -> dict[int, str]:
    """By id: the texts that the tokenizer reads as control tokens: those that it calls special, and those of its added
    tokens that its chat template writes, whatever it calls them."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {
        number: token.content for number, token in added.items() if token.special or token.content.strip() in template
    }
    for number in getattr(tokenizer, "all_special_ids", ()):
        found.setdefault(number, str(tokenizer.convert_ids_to_tokens(number)))
    found.pop(getattr(tokenizer, "unk_token_id", None), None)  # what every unknown word is
    return {number: text for number, text in found.items() if text.strip()}


def _any_of(texts: Any) -> re.Pattern[str]:
    """A pattern of any of these texts; of none, what never matches."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")
