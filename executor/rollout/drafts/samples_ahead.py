"""Samples that engines decode ahead in a round's tail, as drafts for rounds to come (rounds/drafts/run_ahead.py).

They are no samples of the round: its machine and its ledger know nothing of them, nothing of them is scored or trained,
and the round's end stops those that still decode.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....rounds.drafts.run_ahead import RunAhead
from ...engines.messages import Request
from ..prompts import PromptText


class SamplesAhead:
    """The samples ahead of one round.

    Args:
        rule: decides.
        prompts: by id.
        tag: makes request ids unique over the engines' lives.
        most_tokens: of a response.
    """

    def __init__(
        self, rule: RunAhead, prompts: Mapping[str, PromptText], tag: str, most_tokens: int, temperature: float
    ) -> None:
        self._rule, self._prompts, self._tag = rule, prompts, tag
        self._most_tokens, self._temperature = most_tokens, temperature
        self._decoding: dict[str, int] = {}
        self.prompt_of: dict[str, str] = {}
        """By id of a request: its prompt."""

    def fill(self, running: Mapping[int, int], finished: int) -> list[tuple[int, Request]]:
        """By engine, samples of the round that decode on it, and whether any has `finished`; returns what is to begin,
        each with its engine."""
        if finished:
            self._rule.sample_finished()
        begun = []
        for engine, prompt in self._rule.fill(running):
            name = f"{self._tag}/ahead.{len(self.prompt_of)}"
            self.prompt_of[name], self._decoding[name] = prompt, engine
            tokens = self._prompts[prompt].tokens
            begun.append(
                (engine, Request(name, tokens, self._most_tokens, temperature=self._temperature, prompt_id=prompt))
            )
        return begun

    def heard(self, request_id: str) -> None:
        """A request has ended; ids that are none of these are ignored."""
        engine = self._decoding.pop(request_id, None)
        if engine is not None:
            self._rule.ended(engine)

    def lose(self, engine: int) -> None:
        """An engine is gone, and what it decoded ahead with it."""
        for name in [name for name, place in self._decoding.items() if place == engine]:
            self.heard(name)

    def stop(self) -> dict[int, list[str]]:
        """The requests to abort at the round's end, by engine."""
        aborts: dict[int, list[str]] = {}
        for name, engine in self._decoding.items():
            aborts.setdefault(engine, []).append(name)
        self._decoding.clear()
        return aborts
