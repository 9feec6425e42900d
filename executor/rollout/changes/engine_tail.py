"""The tail of a round on engines of a higher TP size, which take over devices of the round's engines.

Once nothing decodes on the round's engines, those that share devices with the tail's sleep, the tail's get weights and
KV caches, and the samples go on there. Invariants:
- each engine sleeps, wakes and loads in the turns of its devices and of the weights, as between two rounds;
- an engine of the tail that dies is replaced, and given weights when it is back (live_round.py);
- when `close` returns, no further step of the change is taken: a step that had begun has ended, unless the round was
  left and its patience was over. Then the next turn, or the next weights, wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from ....plans.schema.levers import EngineLayout
from ....rounds.hand_over import HandOver, TailSpec
from ...engines.engine_handle import EngineBack, EngineHandle, EngineNews
from ...engines.fleet import Fleet
from ...faults import Fault, classify, failure
from ...memory.device_turns import DeviceTurns
from ...memory.turns_took import TurnsOf
from ..round_samples import RolloutSample
from ..sample_ledger import SampleLedger
from .engine_change import EngineChange
from .take_over import GiveAll, TakeOver


class RoundTail:
    """The tail of one round of a run.

    Args:
        run: whose turns are taken.
        decision: when it begins.
        engines: of the tail.
        turns: of the devices.
        give_all: gives them weights.
    """

    def __init__(
        self, run: TurnsOf, decision: HandOver, engines: list[EngineHandle], turns: DeviceTurns, give_all: GiveAll
    ) -> None:
        self.engines = engines
        self._decision = decision
        self._taking = TakeOver(run, engines, turns, give_all)
        self._change: EngineChange | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(
        self,
        engines: Sequence[EngineHandle],
        ledger: SampleLedger,
        version: str,
        tell: Callable[[EngineNews], None],
    ) -> EngineChange:
        """The round begins by weights `version` on `engines`, of which the tail's are the last; returns what changes
        them. `tell` hears of engines that take over, and the error if they cannot."""
        first = len(engines) - len(self.engines)

        def cleared() -> None:
            self._task = asyncio.create_task(self._take_over(version, tell), name=f"tail of {version}")

        self._change = EngineChange(
            self._decision, engines, ledger, range(first), range(first, len(engines)), self._taking.could, cleared,
            new=True,
        )  # fmt: skip
        return self._change

    async def _take_over(self, version: str, tell: Callable[[EngineNews], None]) -> None:
        assert self._change is not None
        try:
            if not await self._taking.carry_out(version):
                return
        except Exception as error:  # noqa: BLE001 - a trainer that died ends the round by itself
            if classify(error) is not Fault.ACTOR:
                tell(failure(error, "the tail's engines"))
            return
        self._change.open()
        for engine in self.engines:
            if engine.alive:
                tell(EngineBack(engine))

    async def close(self, patience_s: float | None = None) -> None:
        """The round is over; a step of the change that goes on is waited for, `patience_s` at most."""
        self._taking.over = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)

    def tell(self, run: TurnsOf, samples: Iterable[RolloutSample]) -> None:
        """Write into the run's trace what happened; seconds from the round's start."""
        at_s = None if self._change is None else self._change.decided_s
        resumed_s = None if self._change is None else self._change.resumed_s
        run.event(
            "tail",
            step=run.step_number + 1,
            engines=len(self.engines),
            tp=self.engines[0].config.tp,
            at_s=None if at_s is None else round(at_s, 6),
            seconds=None if at_s is None or resumed_s is None else round(resumed_s - at_s, 6),
            moved=sum(sample.moves > 0 for sample in samples),
        )


def round_tail(
    run: TurnsOf,
    spec: TailSpec | None,
    samples: int,
    engines: Sequence[EngineHandle],
    fleet: Fleet,
    turns: DeviceTurns,
    give_all: GiveAll,
) -> RoundTail | None:
    """The tail of a run's round on `engines`, of which `samples` samples are to be trained; None without one."""
    if spec is None:
        return None
    engines_of_tail = fleet.engines(EngineLayout(spec.tp, spec.engines))
    return RoundTail(run, HandOver(spec, samples, len(engines)), engines_of_tail, turns, give_all)
