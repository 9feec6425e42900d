"""The common part of every round machine: draws, their samples, and the account at the end.

Invariants:
- `handle` is a pure function of the machine's state and the event: the same events in the same order give the same
  actions, bit for bit; no clock, no randomness, no iteration over unordered sets.
- An event about a sample that is not live (aborted, lost, already settled) changes nothing.
- Once `done`, every draw has a fate and `outcome()` conserves prompts, draws and samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from .events import Abort, Action, Event, Failed, Finished, Issue, Lost, ReachedCutoff, SampleKey, Score, Scored
from .outcome import PROMPT_FATES, Fate, Outcome, TrainedGroup

# An infrastructure failure is retried below; if a prompt's samples still fail this often for good, something is wrong
# with the prompt itself (say, a row that crashes the sandbox), and waiting on would hang the round.
MAX_FAILURES_PER_PROMPT = 8

Take = Callable[[int], list[str]]


@dataclass(slots=True, eq=False)
class Draw:
    """One issued group: its prompt and the state of each of its samples."""

    number: int
    prompt: str
    issued: int = 0
    live: set[int] = field(default_factory=set)  # decoding, or finished and waiting for its reward
    tokens: dict[int, int] = field(default_factory=dict)
    truncated: set[int] = field(default_factory=set)
    rewards: dict[int, float] = field(default_factory=dict)  # in order of arrival
    past_cutoff: bool = False
    ready: bool = False  # certain to be trained, with all its rewards
    fate: Fate | None = None

    def decoding(self) -> list[int]:
        """Samples that still decode."""
        return sorted(s for s in self.live if s not in self.tokens)


class Round(ABC):
    """A round of one kind. Drive it with `start()` and `handle(event)` until `done`, then read `outcome()`.

    `take(k)` hands out up to k fresh prompts (fewer when all others are in flight); it is called for refills only.
    """

    kind: str
    cuts = False
    """Whether draws may be cut short, so that those that are looked at say something of those that are not."""

    def __init__(self, prompts: list[str], group_size: int, max_tokens: int, take: Take) -> None:
        if group_size < 1 or max_tokens < 1:
            raise ValueError("group_size and max_tokens must be at least 1")
        self.group_size = group_size
        self.max_tokens = max_tokens
        self.draws: list[Draw] = []
        self.taken: list[str] = list(prompts)
        self.done = False
        self.ready: list[int] = []  # draws certain to be trained and fully rewarded, in the order of becoming so
        self._initial = list(prompts)
        self._take = take
        self._failures: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._exhausted: list[str] = []

    # -- driving -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> list[Action]:
        """Issue the round's first draws."""

    def handle(self, event: Event) -> list[Action]:
        """Take one event, return what to do about it."""
        if self.done or event.key.draw >= len(self.draws):
            return []
        draw = self.draws[event.key.draw]
        sample = event.key.sample
        if draw.fate is not None or sample not in draw.live:
            return []
        actions: list[Action] = []
        match event:
            case Finished(_, tokens, truncated):
                if sample in draw.tokens:
                    return []
                draw.tokens[sample] = tokens
                if truncated:
                    draw.truncated.add(sample)
                self._on_finished(draw, sample, actions)
            case ReachedCutoff():
                self._on_cutoff(draw, sample, actions)
            case Scored(_, reward):
                if sample not in draw.tokens:
                    return []
                draw.live.discard(sample)
                draw.rewards[sample] = reward
                self._on_scored(draw, sample, actions)
            case Lost():
                draw.live.discard(sample)
                self._on_lost(draw, sample, actions)
            case Failed(_, reason):
                draw.live.discard(sample)
                self._reasons[draw.prompt] = reason
                self._failures[draw.prompt] = self._failures.get(draw.prompt, 0) + 1
                self._on_failed(draw, sample, actions)
        return actions

    @abstractmethod
    def _on_finished(self, draw: Draw, sample: int, actions: list[Action]) -> None: ...

    def _on_cutoff(self, draw: Draw, sample: int, actions: list[Action]) -> None:  # noqa: B027
        """Only rounds of `exact` have a cutoff."""

    @abstractmethod
    def _on_scored(self, draw: Draw, sample: int, actions: list[Action]) -> None: ...

    @abstractmethod
    def _on_lost(self, draw: Draw, sample: int, actions: list[Action]) -> None: ...

    @abstractmethod
    def _on_failed(self, draw: Draw, sample: int, actions: list[Action]) -> None: ...

    # -- shared moves --------------------------------------------------------------------------------------------------

    def _issue_draw(
        self, prompt: str, samples: int, max_tokens: int, cutoff_tokens: int | None, out: list[Action]
    ) -> Draw:
        draw = Draw(number=len(self.draws), prompt=prompt)
        self.draws.append(draw)
        for _ in range(samples):
            self._issue_sample(draw, max_tokens, cutoff_tokens, out)
        return draw

    def _issue_sample(self, draw: Draw, max_tokens: int, cutoff_tokens: int | None, out: list[Action]) -> None:
        key = SampleKey(draw.number, draw.issued)
        draw.issued += 1
        draw.live.add(key.sample)
        out.append(Issue(key, draw.prompt, max_tokens, cutoff_tokens))

    def _score(self, draw: Draw, sample: int, out: list[Action]) -> None:
        out.append(Score(SampleKey(draw.number, sample)))

    def _abort_live(self, draw: Draw, out: list[Action]) -> None:
        for sample in sorted(draw.live):
            out.append(Abort(SampleKey(draw.number, sample)))
        draw.live.clear()

    def _settle(self, draw: Draw, fate: Fate, out: list[Action]) -> None:
        assert draw.fate is None, f"draw {draw.number} was settled twice"
        if fate is Fate.TRAINED:
            self._mark_ready(draw)
        self._abort_live(draw, out)
        draw.fate = fate

    def _mark_ready(self, draw: Draw) -> None:
        if not draw.ready:
            draw.ready = True
            self.ready.append(draw.number)

    def _gave_up(self, prompt: str) -> bool:
        return self._failures.get(prompt, 0) > MAX_FAILURES_PER_PROMPT

    # -- the account ---------------------------------------------------------------------------------------------------

    def samples_to_train(self, prompts_per_step: int) -> int:
        """How many samples the round is to train, in steps of so many prompts."""
        return min(prompts_per_step, len(self.taken)) * self.group_size

    def trained_samples(self, draw: Draw) -> list[int]:
        """The samples of a draw that are trained: the first `group_size` whose rewards arrived, in sample order."""
        return sorted(list(draw.rewards)[: self.group_size])

    def outcome(self) -> Outcome:
        """The account of the finished round. Raises AssertionError if a conservation law is broken."""
        assert self.done, "the round still runs"
        draws = dict.fromkeys(Fate, 0)
        samples = dict.fromkeys(Fate, 0)
        prompts: dict[Fate, list[str]] = {fate: [] for fate in PROMPT_FATES}
        trained: list[TrainedGroup] = []
        for draw in self.draws:
            assert draw.fate is not None, f"draw {draw.number} has no fate"
            draws[draw.fate] += 1
            kept = draw.issued
            if draw.fate in (Fate.TRAINED, Fate.FILTERED):
                kept = self.group_size
                samples[Fate.SURPLUS] += draw.issued - kept
            samples[draw.fate] += kept
            if draw.fate in prompts:
                prompts[draw.fate].append(draw.prompt)
            if draw.fate is Fate.TRAINED:
                chosen = self.trained_samples(draw)
                trained.append(
                    TrainedGroup(
                        prompt=draw.prompt,
                        keys=tuple(SampleKey(draw.number, s) for s in chosen),
                        tokens=tuple(draw.tokens[s] for s in chosen),
                        rewards=tuple(draw.rewards[s] for s in chosen),
                    )
                )
        trained.sort(key=lambda group: group.prompt)
        # In the order taken, not drawn: a redraw after a loss must not cost a prompt its place in the feed or queue.
        place = {prompt: number for number, prompt in enumerate(self.taken)}
        for ids in prompts.values():
            ids.sort(key=lambda prompt: place.get(prompt, -1))
        prompts[Fate.TRAINED].sort()
        result = Outcome(
            trained=tuple(trained),
            prompts={fate: tuple(ids) for fate, ids in prompts.items()},
            draws=draws,
            samples=samples,
            taken=tuple(self.taken),
            issued_draws=len(self.draws),
            issued_samples=sum(d.issued for d in self.draws),
            group_size=self.group_size,
            exhausted=tuple(self._exhausted),
            failures={p: self._reasons[p] for p in prompts[Fate.FAILED]},
        )
        broken = result.check()
        assert not broken, "; ".join(broken)
        return result

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        for draw in self.draws:
            if draw.fate is not None:
                assert not draw.live, f"draw {draw.number} is settled and still has live samples"
            assert set(draw.rewards) <= set(draw.tokens), f"draw {draw.number} has a reward of an unfinished sample"
            assert not set(draw.rewards) & draw.live, f"draw {draw.number} waits for a reward that it has"
            assert draw.live <= set(range(draw.issued))
        if self.done:
            assert all(d.fate is not None for d in self.draws), "the round is done and a draw has no fate"
            trained = [d.number for d in self.draws if d.fate is Fate.TRAINED]
            assert sorted(self.ready) == trained, "what was ready to be trained is not what was trained"
