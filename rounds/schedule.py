"""The state between rounds: the prompts of the next round, its kind, and the queue of deferred prompts.

Prompts come from an endless stream: the shuffles of epochs 0, 1, 2, ... one after another. The last prompts of an epoch
share a round with the first ones of the next, so no round is small because an epoch ends. A prompt that is *in flight*
(in the present round, or deferred) is not issued again: the stream skips it, and it keeps its place until it is free.

Invariants:
- in an epoch each prompt is trained or filtered exactly once, deferred ones included (prompts on which the
  infrastructure failed are reported, not repeated), in the order of the epochs; an epoch is over once all its prompts
  are, which may be while the next one runs;
- prompt ids are unique in a round, in the deferred queue, and in both together;
- the deferred queue is first in, first out. The next round is long (1) when the queue holds P prompts, (2) when its
  oldest prompt has waited `MAX_WAIT_ROUNDS`, (3) when fewer than P prompts are left for a short round, or (4) when the
  two oldest open epochs hold fewer prompts than a short round issues. So no prompt waits without bound;
- at most `MAX_OPEN_EPOCHS` epochs are open, so no prompt is trained three times more often than another; only refills
  of a round begin a third epoch. If epochs defer so few prompts that a long round needs the prompts of more than two,
  so many may be open, `MOST_OPEN_EPOCHS` at most;
- a round trains fewer than P prompts only if it is long by (2), (3) or (4), which few deferrals, a data set of fewer
  than 2 P - 1 prompts, or one of a few rounds cause; if its refills have used all prompts that may be issued; or if a
  long round filters prompts, finds them short, or loses them to an infrastructure failure. Its gradient is then
  smaller in proportion, since losses are divided by planned constants;
- with a queue rule, while the oldest epoch has fresh prompts, a long round is by queue and comes when Q prompts wait,
  however long they have waited. After that, until the epoch is over, and in cases (3) and (4), long rounds are by
  waves, with the oldest epoch's prompts first. So a prompt waits until it is long, or for `until_long_after` long
  rounds in which it was drawn, or until its epoch ends;
- the order of an epoch depends on (seed, epoch) only, and in `predict` also on lengths of earlier rounds; `state()`
  holds all that a resumed run needs, and a round that is begun and never ended changes only which epochs are open.

In `predict` prompts come into the queue from the stream, not from rounds: those that earlier epochs predict to be long
wait there for a long round, and no round cuts or defers any. The prediction is made for a whole epoch when it begins,
from all rounds until then but the last one of the epoch before. The first epoch has no history, so all its rounds are
short ones, which are plain synchronous rounds.

Where samples are balanced by history (balancing/), the lengths of trained groups are recorded in every mode. That
history decides where and in which order samples start, not which groups are trained.

A run may go on by another plan. What waits then was deferred by a rule that the new rounds may not have (a prompt of
`exact` is one whose draw was longer than the old cutoff), so it is trained first, in long rounds by the old rule, and
nothing fresh is issued until the queue is empty. Where the new rounds would treat it alike, the queue goes on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from .balancing.length_estimates import Recorded
from .machines.outcome import Fate, Outcome
from .machines.round import Round
from .predict import LengthHistory
from .round_spec import QueueRule, RoundName, RoundSpec

# Rounds after which a smaller long round is run, so that no prompt waits for ever in a queue that fills slowly. With
# the usual one long round in 3 to 20 this never happens.
MAX_WAIT_ROUNDS = 64

# Epochs that may be open: prompts that are seldom deferred must not be trained many epochs ahead of the others. Two are
# open where one goes over into the next; only refills of a round begin a third. If an epoch defers less than half of a
# long round, as many may be open as fill one, up to MOST_OPEN_EPOCHS: else each epoch would end by a small long round.
MAX_OPEN_EPOCHS = 3
MOST_OPEN_EPOCHS = 8


@dataclass(slots=True)
class _Epoch:
    """An epoch that is not over.

    Attributes:
        number: counted from 0.
        fresh: prompts that are neither settled nor deferred, in the epoch's order, those of the present round included.
        settled: prompts that were trained, filtered or failed.
        put_off: number of its prompts that short rounds have deferred.
        expected_long: in `predict`, prompts that go to the deferred queue and not to a short round.
    """

    number: int
    fresh: list[str]
    settled: set[str]
    expected_long: frozenset[str]
    put_off: int = 0


@dataclass(frozen=True, slots=True)
class _Deferred:
    """A prompt that waits for a long round; `epoch` issued it, and it waits since round number `since`.

    `age`: number of long rounds that found it short; `waited`: number of all long rounds since it waits.
    """

    prompt: str
    epoch: int
    since: int
    age: int = 0
    waited: int = 0


class Schedule:
    """Makes rounds one after another: `begin()`, run the round, `end(round)`; repeat.

    `history`: lengths of the prompts that are known before the first epoch; None: none are.
    """

    def __init__(
        self, spec: RoundSpec, prompts: Sequence[str], seed: int, history: LengthHistory | None = None
    ) -> None:
        if len(set(prompts)) != len(prompts) or not prompts:
            raise ValueError("prompt ids must be unique and there must be at least one")
        self.spec = spec
        self.round_number = 0
        self._prompts = sorted(prompts)
        self._seed = seed
        self._open: list[_Epoch] = []  # epochs that are begun and not over, in order; at least one
        self._next_epoch = 0
        self._deferred: list[_Deferred] = []
        self._issued: dict[str, int] = {}  # prompts of the latest round -> the epoch that issued them
        self._running = False  # whether that round is not ended
        self.ages: tuple[int, ...] = ()
        """Ages of the prompts of the latest round, in its order, if it was by queue."""
        self.waits: tuple[int, ...] = ()
        """Number of long rounds, the latest included, for which each prompt waited that the latest round settled."""
        self.draining = False
        self._owed: RoundSpec | None = None  # the rule by which all that waits was deferred, where it is another one
        self._history = history or LengthHistory()  # used where the spec `learns` only
        self._begin_epoch()

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _begin_epoch(self) -> None:
        order = list(self._prompts)
        random.Random(f"{self._seed}:{self._next_epoch}").shuffle(order)
        order.reverse()
        expected: frozenset[str] = frozenset()
        if self.spec.mode == "predict":
            # Enough prompts are left for a whole short round, whatever share the plan states.
            keep = self.spec.prompts_per_step
            expected = self._history.expected_long(self._prompts, self.spec.long_share, keep)
        self._open.append(_Epoch(self._next_epoch, order, set(), expected))
        self._next_epoch += 1

    def _scan(self, count: int) -> list[tuple[str, int]]:
        """The next `count` prompts of the stream, each with its epoch; fewer only if all others are in flight, or done
        in all epochs that may be open.

        Prompts that are expected to be long go to the queue instead. Begins the next epoch if needed: at most one,
        since it has every prompt that is free.
        """
        busy = {waiting.prompt for waiting in self._deferred}
        if self._running:
            busy.update(self._issued)
        issued: list[tuple[str, int]] = []
        place = 0
        while len(issued) < count and len(busy) < len(self._prompts) and not self._queue_first:
            if place == len(self._open):
                if place >= self._most_open():
                    break
                self._begin_epoch()
            epoch = self._open[place]
            put_off: set[str] = set()
            for prompt in epoch.fresh:
                if len(issued) == count:
                    break
                if prompt in busy:
                    continue
                busy.add(prompt)
                if prompt in epoch.expected_long:
                    put_off.add(prompt)
                    self._deferred.append(_Deferred(prompt, epoch.number, self.round_number))
                else:
                    issued.append((prompt, epoch.number))
            if put_off:
                epoch.fresh = [prompt for prompt in epoch.fresh if prompt not in put_off]
            place += 1
        return issued

    def _take(self, count: int) -> list[str]:
        """Up to `count` prompts of the stream for the present round."""
        taken = self._scan(count)
        self._issued.update(taken)
        return [prompt for prompt, _ in taken]

    def upcoming(self, count: int) -> list[tuple[str, int]]:
        """The next `count` prompts of the stream, each with its epoch, if the present round takes no more; fewer if the
        open epochs have fewer."""
        busy = {waiting.prompt for waiting in self._deferred} | set(self._issued)
        free: dict[str, int] = {}
        for epoch in self._open:
            for prompt in epoch.fresh:
                if prompt not in busy:
                    free.setdefault(prompt, epoch.number)
        return list(free.items())[:count]

    @property
    def epoch(self) -> int:
        """The epoch of the next free prompt; a prompt of an earlier epoch that becomes free again sets it back."""
        waiting = set(self.deferred)
        begun = (epoch.number for epoch in self._open if any(prompt not in waiting for prompt in epoch.fresh))
        return next(begun, self._next_epoch)

    def epoch_of(self, prompt: str) -> int:
        """The epoch that issued a prompt of the latest round. Raises KeyError for any other prompt."""
        return self._issued[prompt]

    @property
    def deferred(self) -> tuple[str, ...]:
        """Prompts that wait for a long round, oldest first."""
        return tuple(waiting.prompt for waiting in self._deferred)

    def recorded(self) -> Recorded:
        """The lengths of earlier rounds, if the spec `learns`."""
        return self._history.recorded(self._prompts)

    def drain(self) -> None:
        """Issue no fresh prompts until a `restore`: only long rounds of the queue follow, the last of them smaller."""
        self.draining = True

    @property
    def owed(self) -> int:
        """Number of prompts that an earlier plan deferred and that are trained by its rule before anything fresh."""
        return 0 if self._owed is None else len(self._deferred)

    @property
    def _queue_first(self) -> bool:
        return self.draining or self._owed is not None

    @property
    def rounds_owed(self) -> int:
        """Number of long rounds that train the whole queue, if none fails."""
        return -(-len(self._deferred) // self.spec.prompts_per_step)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def next_kind(self) -> RoundName:
        """The kind of the next round."""
        return "long" if self._next_long()[0] else "short"

    def _next_long(self) -> tuple[list[_Deferred], bool]:
        """The prompts of the next round if it is long, else none; and whether it is by queue."""
        queue, target, waiting = self.spec.queue, self.spec.prompts_per_step, len(self._deferred)
        must = self._queue_first or len(self._prompts) - waiting < target or self._epochs_wait()
        if queue is not None and self._open[0].fresh and not must:
            return (self._deferred[: queue.prompts] if waiting >= queue.prompts else []), True
        first = self._deferred
        if queue is not None:
            first = sorted(first, key=lambda one: one.epoch)
        elif first:
            must = must or self.round_number - first[0].since >= MAX_WAIT_ROUNDS
        return (first[:target] if waiting >= target or must else []), False

    def _epochs_wait(self) -> bool:
        """Whether a short round would find too few prompts without beginning the last epoch that may be open."""
        most = self._most_open() - 1
        if len(self._open) < most:
            return False
        busy = set(self.deferred)
        free = {prompt for epoch in self._open[:most] for prompt in epoch.fresh if prompt not in busy}
        return len(free) < self.spec.short_prompts

    def _most_open(self) -> int:
        """How many epochs may be open: as many as fill a long round if each defers as many prompts as the oldest."""
        fills = -(-self.spec.prompts_per_step // max(self._open[0].put_off, 1))
        return MAX_OPEN_EPOCHS + min(max(fills - 2, 0), max(MOST_OPEN_EPOCHS - MAX_OPEN_EPOCHS, 0))

    def begin(self) -> Round:
        """Make the next round. Its prompts are in flight until `end`, or until another round is begun instead."""
        self._running, self._issued, self.ages = True, {}, ()
        chosen, by_queue = self._next_long()
        if not chosen:
            return self.spec.short().machine(self._take(self.spec.short_prompts), self._take)
        self._issued = {waiting.prompt: waiting.epoch for waiting in chosen}
        if by_queue:
            self.ages = tuple(waiting.age for waiting in chosen)
            return self.spec.long_by_queue(self.ages).machine(list(self._issued))
        return (self._owed or self.spec).long(len(chosen)).machine(list(self._issued))

    def end(self, finished: Round) -> Outcome:
        """End the round that was begun last: settle or defer its prompts; those that it returns were never issued.

        Raises AssertionError if a conservation law is broken.
        """
        outcome = finished.outcome()
        epochs = {epoch.number: epoch for epoch in self._open}
        fates = {prompt: fate for fate, prompts in outcome.prompts.items() for prompt in prompts}
        gone = {prompt for prompt, fate in fates.items() if fate is not Fate.RETURNED}
        if finished.kind == "long":
            put_off = (Fate.DEFERRED, Fate.RETURNED, None)
            queue = [
                replace(w, waited=w.waited + 1, age=w.age + (fates.get(w.prompt) is Fate.DEFERRED))
                for w in self._deferred
            ]
            self.waits = tuple(w.waited for w in queue if fates.get(w.prompt) not in put_off)
            self._deferred = [w for w in queue if fates.get(w.prompt) in put_off]
        else:
            self.waits = ()
            self._deferred += [
                _Deferred(prompt, self._issued[prompt], self.round_number) for prompt in outcome.prompts[Fate.DEFERRED]
            ]
            for prompt in outcome.prompts[Fate.DEFERRED]:
                epochs[self._issued[prompt]].put_off += 1
        for epoch in self._open:
            # Returned prompts keep their place in the stream.
            epoch.fresh = [p for p in epoch.fresh if not (p in gone and self._issued[p] == epoch.number)]
        for fate in (Fate.TRAINED, Fate.FILTERED, Fate.FAILED):
            for prompt in outcome.prompts[fate]:
                epoch = epochs[self._issued[prompt]]
                assert prompt not in epoch.settled, f"trained twice in one epoch: {prompt}"
                epoch.settled.add(prompt)
        self.round_number += 1
        self._running = False
        if not self._deferred:
            self._owed = None
        if self.spec.learns:
            self._history.learn(finished)  # epochs that begin from now on use it
        if self.spec.mode == "predict":
            # Prompts that are expected to be long leave the head of the stream before the next round is chosen.
            self._scan(self.spec.prompts_per_step)
        self.check_invariants()
        self._open = [epoch for epoch in self._open if len(epoch.settled) < len(self._prompts)]
        if not self._open:
            self._begin_epoch()
        return outcome

    # -- state ---------------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert, between rounds, that each prompt is in one place in each epoch, and at most once in flight."""
        every = set(self._prompts)
        done = every  # prompts that are settled in the epoch before
        for epoch in self._open:
            queued = [waiting.prompt for waiting in self._deferred if waiting.epoch == epoch.number]
            places = [*epoch.fresh, *queued, *epoch.settled]
            assert len(places) == len(every) and set(places) == every, (
                f"in epoch {epoch.number} each prompt is fresh, deferred or settled, exactly once"
            )
            assert done.issuperset((*queued, *epoch.settled)), f"issued for epoch {epoch.number} before its turn"
            done = epoch.settled
        assert len(set(self.deferred)) == len(self._deferred), "a prompt is deferred twice"
        assert len(self._open) <= max(MAX_OPEN_EPOCHS, MOST_OPEN_EPOCHS), "prompts run ahead of those that wait"

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, as JSON-ready data; a round that has not ended counts as never begun."""
        epochs = [
            {
                "epoch": epoch.number,
                "fresh": list(epoch.fresh),
                "settled": sorted(epoch.settled),
                "put_off": epoch.put_off,
            }
            | ({"expected_long": sorted(epoch.expected_long)} if self.spec.mode == "predict" else {})
            for epoch in self._open
        ]
        state: dict[str, Any] = {
            "round_number": self.round_number,
            "next_epoch": self._next_epoch,
            "epochs": epochs,
            "deferred": [list(astuple(waiting)) for waiting in self._deferred],
            "spec": asdict(self._owed or self.spec),
        }
        if self.spec.learns:
            state["history"] = self._history.state()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()`, of any plan of the job. Raises ValueError if it is of another version or set of
        prompts."""
        if "epochs" not in state:
            raise ValueError("the checkpoint was written by another version, which ended each epoch by a smaller round")
        every = set(self._prompts)
        for epoch in state["epochs"]:
            queued = [prompt for prompt, number, *_ in state["deferred"] if number == epoch["epoch"]]
            places = [*epoch["fresh"], *queued, *epoch["settled"]]
            if set(places) != every or len(places) != len(every):
                raise ValueError("the checkpoint belongs to another data set: its prompts are not the job's")
        self.round_number = int(state["round_number"])
        self._next_epoch = int(state["next_epoch"])
        # An epoch that was begun in another mode goes on as one without history.
        self._open = [
            _Epoch(
                int(e["epoch"]),
                list(e["fresh"]),
                set(e["settled"]),
                frozenset(e.get("expected_long", ()) if self.spec.mode == "predict" else ()),
                int(e.get("put_off", 0)),
            )
            for e in state["epochs"]
        ]
        # Older checkpoints have no ages.
        self._deferred = [_Deferred(str(prompt), *map(int, numbers)) for prompt, *numbers in state["deferred"]]
        before = _spec(state.get("spec"))
        self._owed = before if before and self._deferred and not before.owes_alike(self.spec) else None
        self._history.restore(state.get("history", {}))
        self._issued, self._running, self.draining = {}, False, False


def _spec(state: dict[str, Any] | None) -> RoundSpec | None:
    """The spec of a state; None in older checkpoints, whose plan could not change."""
    if state is None:
        return None
    return RoundSpec(**(state | {"queue": state["queue"] and QueueRule(**state["queue"])}))
