"""Runs rounds of one job on its fleet and reward workers, one after the other.

Invariant: when `run` returns, nothing of the round decodes and no reward of it is pending. A round that is cancelled
has sent its aborts, and waits `LEAVE_S` at most for an engine that hangs: what was trained must be saved soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from ...plans.schema.levers import EngineLayout
from ...rounds.balance import PrefixSharing
from ...rounds.balancing.longest_first import Balance, LongestFirst
from ...rounds.balancing.placement import ByLoad
from ...rounds.machines.round import Round
from ...rounds.seeds import RoundSeeds
from ..engines.fleet import Fleet
from ..processes.faults import failure
from ..trainer.trainer_group import TrainerDied
from .engine_change import TailEngines
from .live_round import GiveWeights, Inbox, LiveRound, Weights
from .prompts import PromptText
from .reward_sum import RewardSum, Scorer
from .round_drafts import DraftedRound
from .round_samples import Progress, RolloutResult
from .round_scoring import SampleRewards, ScoringHealth
from .round_streaming import RoundStreaming
from .sample_ledger import SampleLedger
from .unit_change import RoundUnits

LEAVE_S = 2.0  # in which engines may answer the aborts of a round that is left


class RoundRunner:
    """Drives rounds of one job on a fleet. Reused for all rounds; `run` is not reentrant.

    `rewards`: all parts of the job's reward, or the only one.
    """

    def __init__(
        self,
        fleet: Fleet,
        rewards: RewardSum | Scorer,
        prompts: Mapping[str, PromptText],
        decode_text: Callable[[list[int]], str],
        *,
        temperature: float,
        stall_s: float = 120.0,
        ignore_eos: bool = False,
    ) -> None:
        self.progress = Progress()
        self._fleet = fleet
        self._rewards = rewards if isinstance(rewards, RewardSum) else RewardSum.alone(rewards)
        self._prompts = prompts
        self._decode_text = decode_text
        self._temperature = temperature
        self._stall_s = stall_s
        self._ignore_eos = ignore_eos
        self._health = ScoringHealth(len(prompts))

    async def run(
        self,
        round_: Round,
        layout: EngineLayout,
        version: str,
        give_weights: GiveWeights,
        tag: str,
        seeds: RoundSeeds | None = None,
        deadlines_s: Callable[[str], Mapping[str, float]] | None = None,
        max_num_seqs: int | None = None,
        sharing: PrefixSharing | None = None,
        streaming: RoundStreaming | None = None,
        tail: TailEngines | None = None,
        drafts: DraftedRound | None = None,
        balance: Balance | None = None,
        units: RoundUnits | None = None,
    ) -> RolloutResult:
        """Run `round_` to its end on engines that already hold `version`; `tag` makes request ids unique.

        `give_weights` gives them to an engine that is replaced during the round.

        Without `seeds` the engines draw from generators of their own. `deadlines_s` gives, by part of the reward, the
        seconds that scoring a sample of a prompt may take; without it, the reward workers' own. `max_num_seqs` is how
        many samples an engine decodes at a time; without it, as many as it was built for. `sharing` keeps a prompt's
        samples together; without it they are spread. `streaming` is told what is certain to be trained; it is to be
        closed after the round. `tail` has other engines take over in mid-round. `drafts` remembers what is written.
        `balance` has the longest expected samples start first, in place of `sharing`; it needs `max_num_seqs`. `units`
        says which engines a job of a co-execution group may use, in a round without `tail` and hand-over.
        Raises RunFailed when an infrastructure fault outlasts its retries or an invariant does not hold.
        """
        engines = self._fleet.engines(layout) + ([] if tail is None else tail.engines)
        inbox = Inbox()
        placement: ByLoad | LongestFirst = ByLoad(len(engines), sharing)
        if balance is not None:
            assert max_num_seqs is not None, "samples wait for a place among those that an engine decodes at a time"
            placement = LongestFirst(len(engines), balance, max_num_seqs)
        ledger = SampleLedger(
            [engine.name for engine in engines], self._prompts, tag, seeds, placement,
            temperature=self._temperature, ignore_eos=self._ignore_eos,
        )  # fmt: skip
        self.progress = ledger.progress
        self._health.begin_round()
        rewards = SampleRewards(
            self._rewards, self._prompts, self._decode_text, self._health, deadlines_s, ledger.progress,
            inbox.put_nowait,
        )  # fmt: skip
        live = LiveRound(
            round_, engines, Weights(version, give_weights), ledger, rewards, inbox,
            max_num_seqs=max_num_seqs, stall_s=self._stall_s, drafts=drafts,
        )  # fmt: skip
        if drafts is not None and tail is None and units is None and (streaming is None or streaming.hand_over is None):
            # Engines that stop in mid-round are to have no samples that nobody moves.
            most = round_.max_tokens
            live.ahead = drafts.samples_ahead(self._prompts, tag, most, self._temperature)
        if streaming is not None:
            streaming.stream.failed = partial(_tell_failure, inbox)
            live.on_ready = streaming.offer_from(round_, ledger.samples)
            live.change = streaming.begin(engines, ledger)
        if tail is not None:
            live.change = tail.begin(engines, ledger, version, inbox.put_nowait)
        if units is not None:
            live.change = units.begin(engines, ledger, version, inbox.put_nowait, spreads=balance is None)
        self._fleet.listen(inbox.put_nowait)
        patience_s = None
        try:
            result = await live.drive()
            if streaming is not None:
                streaming.stream.round_over()  # now, before the stream takes what became ready with the round's end
            if drafts is not None:
                await live.stop()
                requests = ((ledger.request_id(key), sample) for key, sample in ledger.samples.items())
                result.drafts = await drafts.end(engines, requests)
            return result
        except BaseException as end:
            if isinstance(end, asyncio.CancelledError):
                patience_s = LEAVE_S
            if streaming is not None:
                streaming.stream.abandon()
            raise
        finally:
            await live.stop(patience_s)
            if tail is not None:
                await tail.close(patience_s)
            if units is not None:
                await units.close(patience_s)
            self._fleet.listen_no_more()


def _tell_failure(inbox: Inbox, error: BaseException) -> None:
    """End the round with an error of the training beside it; of a trainer that died the run takes care."""
    if not isinstance(error, TrainerDied):
        inbox.put_nowait(failure(error, "trainer"))
