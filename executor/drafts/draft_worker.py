"""What a rank of an engine does for drafts: its methods that the engine calls through vLLM's `collective_rpc`."""

from __future__ import annotations

from typing import Any

from .draft_messages import PromptHistory
from .proposer import HistoryProposer


class DraftRank:
    """vLLM mixes this into its worker, so `self` is a vLLM worker. Data goes in and out as plain data.

    All ranks of an engine verify the drafts that rank 0 proposes, so the others propose none.
    """

    model_runner: Any
    rank: int
    seeded: Any = None
    """What draws samples by their seeds (engines/seeded_sampling.py); None: vLLM's generators do."""

    def attach_drafts(self) -> None:
        """Make ready for drafts. Raises RuntimeError if vLLM did not take our proposer or our sampling."""
        proposer = getattr(self.model_runner, "drafter", None)
        if not isinstance(proposer, HistoryProposer):
            raise RuntimeError(f"vLLM drafts by {type(proposer).__name__}, not by HistoryProposer")
        if self.seeded is None:
            raise RuntimeError("drafts are verified by drawing with seeds, for which this vLLM has no place")
        proposer.attach(self.model_runner, self.seeded)

    def begin_drafts(self, tokens: int, up_to_sequences: int) -> None:
        """Begin a round (proposer.HistoryProposer.begin)."""
        self._proposer.begin(tokens if self.rank == 0 else 0, up_to_sequences)

    def remember(self, histories: Any) -> None:
        """Take the earlier responses to prompts (`PromptHistory.packed`)."""
        if self.rank == 0:
            for packed in histories:
                self._proposer.remember(PromptHistory.unpacked(packed))

    def take_drafts(self, wanted: Any) -> Any:
        """What drafts gave in the round (`DraftReport.packed`), with the tokens of the requests `wanted`; None of
        other ranks than the first."""
        return self._proposer.report(set(wanted)).packed() if self.rank == 0 else None

    @property
    def _proposer(self) -> HistoryProposer:
        proposer: HistoryProposer = self.model_runner.drafter
        return proposer
