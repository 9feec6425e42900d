"""`exact` rounds: tail batching that leaves the trained distribution as it is.

Let D be the distribution of a prompt's draws. A draw is *short* if its longest sample ends within the cutoff L*, else
*long*; a sample that is cut at L* is long.

Short round. Draws stand in a row, in order of issue. A draw *counts* if and only if fewer than P of the draws before it
were accepted (short, and not filtered by dynamic sampling). That event does not depend on the draw itself, so counting
draws are unconditioned. A counting short draw is trained, a counting long draw is deferred, a draw that does not count
is returned as if never issued, whatever it drew.

Long round. Deferred prompts stand in a row too, in the order in which they were deferred, each in as many copies as its
age says: the number of long rounds that deferred it again. A prompt is long if one of its copies is. It counts if and
only if fewer than P of the prompts before it are long. Of a counting prompt the lowest-numbered long copy is trained;
one without is deferred again, in its place; a prompt that does not count is returned, as if never issued. Whether a
prompt counts, and in how many copies it is drawn, follows from earlier rounds and from draws of others before it in the
row: given those, its copies are independent draws from D. So the draws that a prompt has where it counts, copy by copy
and round by round, are a sequence from D. The first long one in it is trained, and that is distributed as D given long,
whatever the copies and however many rounds it takes. (D is one distribution here; while the policy learns, a round
draws from that of its own weights.) A round that finds fewer than P trains those: losses are divided by planned
constants, so a group weighs the same in any round. What is not trained yet when a run ends would be missing, so it is
drained.

From an age on that the plan states, a prompt is drawn in waves until a draw is long: once all its draws are short, as
many again are made, so that one that is rarely long costs a logarithmic number of waves. It is long for certain, so
those behind it are judged without its draws; it is drawn beyond its copies only where it counts. A long round by waves
is one of such prompts alone; epochs and runs end with them, since what waits for chance might never be over.

Each prompt is then trained on P(short) * D|short + P(long) * D|long = D over an epoch.

Invariants:
- classification depends on token counts only, never on arrival times;
- a draw with a sample that was lost or failed is void: it is drawn again as a whole, in the same place of the row;
  whether others count is not judged again;
- after `MAX_DRAWS` draws of one prompt in a round the last draw is trained as it is and the prompt is reported as
  `exhausted`: a bounded, counted leak instead of an unbounded wait. A prompt that is long with probability q is
  deferred with probability q and exhausted with (1 - q)^64, so the leak is at most 0.6 % of a prompt's weight, at
  q = 1/65; less where it went through rounds by queue before.
"""

from __future__ import annotations

from abc import abstractmethod

from .events import Action
from .round import Draw, Round, Take


class ExactRound(Round):
    """Base class of short and long rounds of `exact`: a cutoff that tells long draws from short ones, and voided
    draws."""

    def __init__(self, prompts: list[str], group_size: int, cutoff_tokens: int, max_tokens: int, take: Take) -> None:
        super().__init__(prompts, group_size, max_tokens, take)
        if not 1 <= cutoff_tokens < max_tokens:
            raise ValueError("the cutoff must be at least 1 and below the length cap")
        self.cutoff_tokens = cutoff_tokens

    def _is_long(self, draw: Draw, sample: int) -> bool:
        tokens = draw.tokens[sample]
        return tokens > self.cutoff_tokens or (tokens == self.cutoff_tokens and sample in draw.truncated)

    def _is_short(self, draw: Draw) -> bool:
        return not draw.past_cutoff and len(draw.tokens) == self.group_size

    @abstractmethod
    def _replace(self, draw: Draw, actions: list[Action]) -> None:
        """Draw again in the place of `draw`."""

    @abstractmethod
    def _give_up(self, draw: Draw, actions: list[Action]) -> None:
        """Settle the prompt of `draw` as failed."""

    def _on_lost(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        self._replace(draw, actions)

    def _on_failed(self, draw: Draw, sample: int, actions: list[Action]) -> None:
        if self._gave_up(draw.prompt):
            self._give_up(draw, actions)
        else:
            self._replace(draw, actions)
