"""Drafts in a vLLM worker: what its samples are likely to write next, from what their prompts were answered before.

vLLM makes this class (method `custom_class`) and asks it for drafts after each step. They are verified exactly
(engines/runner_patches.py): a draft changes how many tokens a step gives, and never their distribution.

Invariants:
- a sample's drafts come from responses to its own prompt: of earlier rounds as the driver gave them, and of this one;
  where these have nothing likely, from the last responses of the engine to any prompt;
- while no drafts are wanted, a step costs nothing but the look at the number of samples; what they decode meanwhile is
  read when they end, or when drafts are wanted again;
- a round's texts are dropped when the next one begins: the driver gives those of its prompts.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ...rounds.drafts.acceptance import CONTEXT, AcceptanceTable
from ...rounds.drafts.draft_account import DraftAccount
from .draft_chain import ChainRoom, draft_chain
from .draft_messages import NO_TOKENS, PROMPT, PROMPT_TOKENS, REQUEST, BatchSteps, DraftReport, PromptHistory
from .prompt_index import EMPTY, CommonText, PromptIndex

READ_TOKENS = 8
"""Tokens of a sample after which its row is read again while it is drafted for."""


class _Sample:
    """A sample that decodes here: its request, prompt and where its response begins, and its latest draft with cells
    and origins (draft_chain; none where it is from responses to other prompts)."""

    __slots__ = ("begin", "cells", "drafted", "index", "origins", "request")

    def __init__(self, request: str, index: PromptIndex, begin: int) -> None:
        self.request, self.index, self.begin = request, index, begin
        self.drafted: list[int] = []
        self.cells: list[int] = []
        self.origins: list[int] = []


class HistoryProposer:
    """vLLM's proposer of drafts; `attach` it to its model runner, and tell it what steps are `scheduled`."""

    def __init__(self, vllm_config: Any) -> None:
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._tokens = 0
        self._account, self._table, self._report = DraftAccount(0), AcceptanceTable(), DraftReport()
        self._histories: dict[str, PromptHistory] = {}
        self._prompts: dict[str, PromptIndex] = {}
        self._common = CommonText()
        self._samples: dict[str, _Sample] = {}  # by vLLM's id of the request
        self._runner: Any = None
        self._scheduled: dict[str, list[int]] = {}
        self._left: set[str] = set()  # requests of the round before that are in vLLM's batch still
        self._disturbed = True  # whether the step is more than one of decoding
        self._looked = False  # whether drafts were looked for before the step
        self._began = 0.0
        self._room = ChainRoom.of(self._most)
        self._context = np.empty(CONTEXT + self._most, np.int32)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """No model is needed; vLLM calls this on a CPU."""

    # -- of the worker -------------------------------------------------------------------------------------------------

    def attach(self, runner: Any) -> None:
        """Draft for the batches of vLLM's model runner; compiles what drafting needs."""
        self._context[:2] = 0
        self._chain(EMPTY, EMPTY, 2, 1, 1.0)
        self._runner = runner

    def scheduled(self, output: Any) -> None:
        """What the step that comes will do (vLLM's `SchedulerOutput`)."""
        if not self._tokens:
            return
        self._scheduled = output.scheduled_spec_decode_tokens
        self._disturbed = bool(output.scheduled_new_reqs or output.finished_req_ids)
        for name in set(output.finished_req_ids) - self._left:
            self._read(name)
            if (sample := self._samples.pop(name, None)) is not None:
                # One that was preempted has no row, and of its first tokens none may have been told.
                self._common.add(sample.index.responses().get(sample.request, NO_TOKENS))

    def begin(self, tokens: int, up_to_sequences: int) -> None:
        """Begin a round that drafts at most so many tokens a step, while at most so many samples decode."""
        self._tokens = min(tokens, self._most)
        self._account.up_to_sequences = up_to_sequences
        self._account.begin_round()
        self._histories.clear()
        self._prompts.clear()
        self._samples.clear()
        # What was aborted at the end of the round before leaves vLLM's batch with the next step, and is no sibling.
        self._left = set(self._runner.input_batch.req_id_to_index)
        if tokens:
            self._table.fade()
        self._report = DraftReport(drafted_at=[0] * self._tokens, accepted_at=[0] * self._tokens)

    def remember(self, history: PromptHistory) -> None:
        """The earlier responses to a prompt of the round."""
        self._histories[history.prompt] = history

    def report(self, wanted: set[str]) -> DraftReport:
        """What drafts gave since the round began, with the tokens of the requests `wanted` as the driver names them."""
        for name in set(self._runner.input_batch.req_id_to_index) - self._left if self._tokens else ():
            self._read(name)  # what was aborted leaves vLLM's batch with its next step only
        report = self._report
        texts = [index.responses() for index in self._prompts.values()]
        report.unfinished = {name: text for each in texts for name, text in each.items() if name in wanted}
        report.index_bytes = sum(index.nbytes for index in self._prompts.values())
        for size, means in self._account.means().items():
            one = report.batches.setdefault(size, BatchSteps())
            one.plain_s, one.drafted_s, one.emitted, one.verified, one.saved_s = means
        return report

    # -- of vLLM -------------------------------------------------------------------------------------------------------

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens: Any, token_ids: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for each row of the batch; [] for none.

        Args:
            sampled_token_ids: of the step that ended; [] in the middle of a prefill.
            num_tokens: of each row, drafts not counted.
            token_ids: int32 [rows, tokens]; prompt and response.
            slot_mappings: not used.
        """
        running = len(sampled_token_ids)
        none: list[list[int]] = [[] for _ in range(running)]
        if not self._tokens:
            return none
        now = time.perf_counter()
        names = self._runner.input_batch.req_ids
        scheduled = sum(map(len, self._scheduled.values()))
        verified = self._learn(names, sampled_token_ids) if scheduled else 0
        # After a step in which vLLM did not ask for drafts, it verifies placeholders of its own.
        decodes = not self._disturbed and verified == scheduled
        seconds = now - self._began if decodes else 0.0
        self._account.record(running, self._looked, verified, sum(map(len, sampled_token_ids)), seconds)
        self._began = now
        least_chance = self._account.least_chance(running)
        self._looked = least_chance is not None
        if least_chance is None:
            return none
        self._report.steps += 1
        self._report.sequence_steps += running
        self._report.batch(running).sequence_steps += running
        return [
            self._draft(names[row], token_ids[row], int(num_tokens[row]), least_chance) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def _learn(self, names: list[str], sampled_token_ids: list[list[int]]) -> int:
        """Learn from the drafts that were verified; returns how many tokens of ours there were."""
        report, batch = self._report, self._report.batch(len(sampled_token_ids))
        verified = 0
        for row, sampled in enumerate(sampled_token_ids):
            drafted = self._scheduled.get(names[row])
            sample = self._samples.get(names[row])
            if not drafted or sample is None:
                continue
            ours, sample.drafted = sample.drafted, []
            if drafted != ours[: len(drafted)]:
                continue
            verified += len(drafted)
            if not sampled:
                continue
            accepted = len(sampled) - 1
            self._table.verified(sample.cells[: len(drafted)], accepted)
            batch.drafted += len(drafted)
            batch.accepted += accepted
            for place in range(len(drafted)):
                report.drafted_at[place] += 1
            for place in range(accepted):
                report.accepted_at[place] += 1
                source = sample.index.source(sample.request, sample.origins[place]) if sample.origins else "other"
                report.by_source[source] = report.by_source.get(source, 0) + 1
        if verified:
            batch.drafted_steps += len(sampled_token_ids)
        return verified

    def _draft(self, name: str, row: Any, known: int, least_chance: float) -> list[int]:
        sample = self._samples.get(name) or self._begin(name, row)
        # vLLM asks for no drafts of any sample while one has no room for its draft and the longest draft after that.
        most = min(self._tokens, self._longest - self._most - known)
        if sample is None or most < 1:
            return []
        index = sample.index
        if known - sample.begin - index.told(sample.request) >= READ_TOKENS:
            index.tell(sample.request, row[sample.begin : known].copy())
        end = min(known, CONTEXT)
        self._context[:end] = row[known - end : known]
        count = self._chain(index.earlier, index.live, end, most, least_chance)
        sample.origins = self._room.origins[:count].tolist()
        if not count:
            count = self._chain(EMPTY, self._common.text, end, most, least_chance)
        sample.cells = self._room.cells[:count].tolist()
        sample.drafted = self._room.drafted[:count].tolist()
        return sample.drafted

    def _chain(self, earlier: Any, live: Any, end: int, most: int, least_chance: float) -> int:
        return int(draft_chain(earlier, live, self._context, end, self._table.rates, most, least_chance, self._room))

    def _begin(self, name: str, row: Any) -> _Sample | None:
        request = self._runner.requests.get(name)
        parameters = None if request is None else request.sampling_params
        arguments = getattr(parameters, "extra_args", None) or {}
        prompt = arguments.get(PROMPT)
        if prompt is None:
            return None
        begin = int(arguments[PROMPT_TOKENS])
        if prompt not in self._prompts:
            history = self._histories.get(prompt, PromptHistory(prompt, [], []))
            self._prompts[prompt] = PromptIndex(row[:begin].copy(), history.responses, history.weights, history.ahead)
        sample = self._samples[name] = _Sample(arguments[REQUEST], self._prompts[prompt], begin)
        return sample

    def _read(self, name: str) -> None:
        """Take what a sample has decoded so far from vLLM's batch."""
        batch = self._runner.input_batch
        row = batch.req_id_to_index.get(name)
        if row is None:
            return
        sample = self._samples.get(name) or self._begin(name, batch.token_ids_cpu[row])
        if sample is not None:
            known = int(batch.num_tokens_no_spec[row])
            sample.index.tell(sample.request, batch.token_ids_cpu[row, sample.begin : known].copy())
