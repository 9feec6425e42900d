"""Runs rounds of one job on its fleet and reward workers, one after the other.

Invariant: when `run` returns, nothing of the round decodes and no reward of it is pending. A round that is cancelled
has sent its aborts, and waits `LEAVE_S` at most for an engine that hangs: what was trained must be saved soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...plans.schema.levers import EngineLayout
from ...rounds.balancing.placement import ByLoad, PrefixSharing
from ...rounds.machines.round import Round
from ...rounds.seeds import RoundSeeds
from ..engines.fleet import Fleet
from ..engines.messages import NO_RULES, SamplingRules
from .live_round import GiveWeights, Inbox, LiveRound
from .prompts import PromptText
from .reward_sum import PartScorer, RewardSum
from .round_lever import OpenRound, RoundLever
from .round_samples import Progress, RolloutResult
from .round_scoring import SampleRewards, ScoringHealth
from .sample_ledger import SampleLedger

LEAVE_S = 2.0  # in which engines may answer the aborts of a round that is left


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """How a round is run.

    Attributes:
        seeds: of its samples; None: engines draw from generators of their own.
        deadlines_s: by part of the reward, the seconds that scoring a sample of a prompt may take; None: the reward
            workers' own.
        max_num_seqs: samples that an engine decodes at a time; None: as many as it was built for.
        sharing: keeps a prompt's samples together; None: they are spread.
    """

    seeds: RoundSeeds | None = None
    deadlines_s: Callable[[str], Mapping[str, float]] | None = None
    max_num_seqs: int | None = None
    sharing: PrefixSharing | None = None


PLAIN = RoundOptions()


class RoundRunner:
    """Drives rounds of one job on a fleet. Reused for all rounds; `run` is not reentrant.

    `rewards`: all parts of the job's reward, or the only one.
    """

    def __init__(
        self,
        fleet: Fleet,
        rewards: RewardSum | PartScorer,
        prompts: Mapping[str, PromptText],
        decode_text: Callable[[list[int]], str],
        *,
        temperature: float,
        rules: SamplingRules = NO_RULES,
        stall_s: float = 120.0,
        ignore_eos: bool = False,
    ) -> None:
        self.progress = Progress()
        self._fleet = fleet
        self._rewards = rewards if isinstance(rewards, RewardSum) else RewardSum.alone(rewards)
        self._prompts = prompts
        self._decode_text = decode_text
        self._temperature, self._rules = temperature, rules
        self._stall_s = stall_s
        self._ignore_eos = ignore_eos
        self._health = ScoringHealth(len(prompts))

    async def run(
        self,
        machine: Round,
        layout: EngineLayout,
        version: str,
        give_weights: GiveWeights,
        tag: str,
        options: RoundOptions = PLAIN,
        levers: Sequence[RoundLever] = (),
    ) -> RolloutResult:
        """Run a round to its end on engines that already hold `version`; `tag` makes request ids unique.

        `give_weights` gives them to an engine that is replaced during the round. Levers hook in in their order; the
        first of them that has a placement decides it. Raises RunFailed when an infrastructure fault outlasts its
        retries or an invariant does not hold.
        """
        engines = [*self._fleet.engines(layout), *(engine for lever in levers for engine in lever.engines)]
        inbox = Inbox()
        own = next((place for lever in levers if (place := lever.placement(len(engines))) is not None), None)
        ledger = SampleLedger(
            [engine.name for engine in engines], self._prompts, tag, options.seeds,
            own or ByLoad(len(engines), options.sharing), temperature=self._temperature, ignore_eos=self._ignore_eos,
            rules=self._rules,
        )  # fmt: skip
        self.progress = ledger.progress
        self._health.begin_round()
        rewards = SampleRewards(
            self._rewards, self._prompts, self._decode_text, self._health, options.deadlines_s, ledger.progress,
            inbox.put_nowait,
        )  # fmt: skip
        opened = OpenRound(machine, engines, ledger, version, inbox.put_nowait, spreads=own is None)
        for lever in levers:
            lever.begin(opened)
        live = LiveRound(
            opened, give_weights, rewards, inbox, max_num_seqs=options.max_num_seqs, stall_s=self._stall_s
        )  # fmt: skip
        self._fleet.listen(inbox.put_nowait)
        patience_s = None
        try:
            result = await live.drive()
            for lever in levers:
                lever.over()
            await live.stop()
            for lever in levers:
                await lever.end(opened)
            return result
        except BaseException as end:
            if isinstance(end, asyncio.CancelledError):
                patience_s = LEAVE_S
            for lever in levers:
                lever.abandon()
            raise
        finally:
            await live.stop(patience_s)
            for lever in levers:
                await lever.close(patience_s)
            self._fleet.listen_no_more()
