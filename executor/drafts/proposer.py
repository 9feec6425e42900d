"""Drafts in a vLLM worker: what its samples are likely to write next, from what their prompts were answered before.

vLLM makes this class (method `custom_class`) and asks it for drafts after each step. It verifies them exactly: a draft
changes how many tokens a step gives, and never their distribution.

Invariants:
- a sample's drafts come from responses to its own prompt: of earlier rounds as the driver gave them, and of this one;
- while no drafts are wanted, a step costs nothing but the look at the number of samples; what they decode meanwhile is
  read when they end, or when drafts are wanted again;
- with new weights all texts are dropped: the driver gives those of the next round's prompts.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from ...rounds.drafts.acceptance import CONTEXT, AcceptanceTable
from ...rounds.drafts.draft_account import DraftAccount
from .draft_chain import draft_chain
from .exact_expand import mend_expand
from .prompt_index import EMPTY, PromptIndex

PROMPT, PROMPT_TOKENS = "rlplan_prompt", "rlplan_prompt_tokens"
"""Keys of vLLM's extra arguments: the prompt's name, and how many tokens it has (a sample that moved here has decoded
the others)."""


class _Sample:
    """A sample that decodes here."""

    __slots__ = ("begin", "cells", "index")

    def __init__(self, index: PromptIndex, begin: int) -> None:
        self.index, self.begin = index, begin
        self.cells: list[int] = []


class HistoryProposer:
    """vLLM's proposer of drafts; `attach` it to its model runner."""

    def __init__(self, vllm_config: Any) -> None:
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._tokens = 0
        self._account = DraftAccount(0)
        self._table = AcceptanceTable()
        self._prompts: dict[str, PromptIndex] = {}
        self._samples: dict[str, _Sample] = {}
        self._runner: Any = None
        self._scheduled: dict[str, list[int]] = {}
        self._prefilled = True
        self._began = 0.0
        self.counts: Counter[str] = Counter()
        self._drafted, self._cells = np.empty(self._most, np.int32), np.empty(self._most, np.int32)
        self._context = np.empty(CONTEXT + self._most, np.int32)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """No model is needed; vLLM calls this on a CPU."""

    # -- of the worker ---------------------------------------------------------------------------------------------

    def attach(self, runner: Any) -> None:
        """Follow what vLLM's model runner schedules; compiles what drafting needs."""
        if runner.device.type == "cpu":
            mend_expand()
        self._context[:2] = 0
        draft_chain(EMPTY, EMPTY, self._context, 2, self._table.rates, 1, 1.0, self._drafted, self._cells)
        self._runner = runner
        update = runner._update_states

        def updated(scheduled: Any) -> Any:
            self._scheduled = scheduled.scheduled_spec_decode_tokens
            self._prefilled = bool(scheduled.scheduled_new_reqs) or bool(scheduled.finished_req_ids)
            for name in scheduled.finished_req_ids:
                self._end(name)
            return update(scheduled)

        runner._update_states = updated

    def begin(self, tokens: int, up_to_sequences: int) -> None:
        """Draft at most so many tokens a step, while at most so many samples decode, from now on."""
        self._tokens = min(tokens, self._most)
        if up_to_sequences != self._account.up_to_sequences:
            self._account = DraftAccount(up_to_sequences)
        self._prompts.clear()
        self._samples.clear()
        self._table.fade()
        self.counts.clear()

    def remember(self, prompt: str, tokens: Any, responses: list[Any], weights: list[float]) -> None:
        """Earlier responses to a prompt, and what each of them counts."""
        self._prompts[prompt] = PromptIndex(tokens, responses, weights)

    def gains(self) -> dict[int, float]:
        """By batch: how many times as fast steps are with drafts."""
        return self._account.gains()

    # -- of vLLM ---------------------------------------------------------------------------------------------------

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens: Any, token_ids: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for each row of the batch; [] for none.

        Args:
            sampled_token_ids: of the step that ended; [] in the middle of a prefill.
            num_tokens: of each row, drafts not counted.
            token_ids: int32 [rows, tokens]; prompt and response.
        """
        running = len(sampled_token_ids)
        none: list[list[int]] = [[] for _ in range(running)]
        if not self._tokens:
            return none
        now = time.perf_counter()
        verified = sum(map(len, self._scheduled.values()))
        names = self._runner.input_batch.req_ids
        if verified:
            self._learn(names, sampled_token_ids)
        if not self._prefilled:
            self._account.record(running, verified, sum(map(len, sampled_token_ids)), now - self._began)
        self._began = now
        least_chance = self._account.least_chance(running)
        if least_chance is None:
            return none
        return [
            self._draft(names[row], token_ids[row], int(num_tokens[row]), least_chance) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def _learn(self, names: list[str], sampled_token_ids: list[list[int]]) -> None:
        for row, sampled in enumerate(sampled_token_ids):
            drafted = self._scheduled.get(names[row])
            if drafted and sampled and (sample := self._samples.get(names[row])) is not None:
                accepted = len(sampled) - 1
                self._table.verified(sample.cells[: len(drafted)], accepted)
                self.counts["drafted"] += len(drafted)
                self.counts["accepted"] += accepted

    def _draft(self, name: str, row: Any, known: int, least_chance: float) -> list[int]:
        sample = self._samples.get(name)
        if sample is None:
            sample = self._begin(name, row)
        if sample is None:
            return []
        most = min(self._tokens, self._longest - known - 1)
        if most < 1:
            return []
        index = sample.index
        if known - sample.begin - index.told(name) >= 16:
            index.tell(name, row[sample.begin : known].copy())
        end = min(known, CONTEXT)
        self._context[:end] = row[known - end : known]
        count = draft_chain(index.earlier, index.live, self._context, end, self._table.rates, most, least_chance,
                            self._drafted, self._cells)  # fmt: skip
        sample.cells = self._cells[:count].tolist()
        drafted: list[int] = self._drafted[:count].tolist()
        return drafted

    def _begin(self, name: str, row: Any) -> _Sample | None:
        request = self._runner.requests.get(name)
        arguments = getattr(request.sampling_params, "extra_args", None) or {}
        prompt = arguments.get(PROMPT)
        if prompt is None:
            return None
        begin = int(arguments[PROMPT_TOKENS])
        if prompt not in self._prompts:
            self._prompts[prompt] = PromptIndex(row[:begin].copy())
        sample = self._samples[name] = _Sample(self._prompts[prompt], begin)
        return sample

    def _end(self, name: str) -> None:
        if not self._tokens:
            return
        batch = self._runner.input_batch
        row = batch.req_id_to_index.get(name)
        if row is None:
            return
        sample = self._samples.pop(name, None) or self._begin(name, batch.token_ids_cpu[row])
        self._samples.pop(name, None)
        if sample is not None:
            known = int(batch.num_tokens_no_spec[row])
            sample.index.tell(name, batch.token_ids_cpu[row, sample.begin : known].copy())
