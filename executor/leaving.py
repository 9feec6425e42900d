"""Nodes that are to be taken away (a preemption notice, a shrinking cluster): they are left between two steps.

Ray tells of a node that drains; nothing new can be started there. What is done depends on what runs there:

    any actor         the trace says so at once (event `node_draining`)
    trainer ranks     a checkpoint is written before the next step, however lately there was one: the death of the node
                      then costs no step that has ended
    and if another node has room, engines and ranks move there now; without one they stay until the node is gone, and
    what happens then is what happens at any node's death (`seat_keeper`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .engines.engine_handle import EngineHandle
from .engines.fleet import Fleet
from .placement.seat_keeper import SeatKeeper
from .run import TrainingRun
from .trainer.trainer_group import TrainerDied


class Leaving:
    """Looks after the nodes of `seats`; `between_steps` is called when no round and no update goes on.

    `judges`: the copies of a judge, which are engines beside the fleet.
    """

    def __init__(
        self, seats: SeatKeeper, fleet: Fleet, runs: Sequence[TrainingRun], judges: Sequence[EngineHandle] = ()
    ) -> None:
        self._seats, self._fleet, self._runs, self._judges = seats, fleet, runs, judges

    async def between_steps(self, note: Callable[[str], None]) -> None:
        """Leave nodes that Ray drains; `note` takes a line for the person who watches. Raises RunFailed."""
        for number, left_s in self._seats.newly_draining().items():
            address = self._seats.address(number)
            note(f"node {address} is to be taken away" + ("" if left_s is None else f" in {left_s:.0f} s"))
            for run in self._runs:
                run.event("node_draining", step=run.step_number, node=number, address=address, left_s=left_s)
            trained = [run for run in self._runs if self._seats.trains_on(run.name, number)]
            for run in trained:
                await run.checkpoint()
            if faults := [run.checkpoint_fault for run in trained if run.checkpoint_fault is not None]:
                note(f"node {address} is used until it is gone, since no checkpoint could be written: {faults[0]}")
                continue
            if not self._seats.leave(number):
                note(f"no other node has room for what runs on node {address}; it stays until the node is gone")
                continue
            why = f"its node {address} is to be taken away"
            for engine in (*self._fleet.all_engines(), *self._judges):
                if self._seats.seated_on(engine.name, number):
                    engine.fail(why)
            for run in trained:
                await run.recover(TrainerDied(run.trainer.name, why))
