"""Placement of samples: which of those that wait start now, and on which engine.

`ByLoad` starts each sample at once on the least loaded engine. `LongestFirst` (longest_first.py) starts the samples
first that are expected to be longest, on the engines that would end them soonest, and lets others wait while engines
are full.

By load (`Balancer`) a sample goes to the least loaded engine, or to one that holds its prompt and is hardly more
loaded. The load of an engine is the sum of the expected tokens of its running samples (`expected_tokens`, not the cap:
with caps every sample would weigh the same, and the rule would count requests).

An engine caches what it has prefilled: further samples of a prompt skip the prefill of its whole blocks and share their
memory. So an engine without the prompt counts as more loaded, by the samples that the prompt is worth
(`PrefixSharing.lead`), which bounds how far an engine gets ahead of the least loaded one. The best bound is not decided
here: the samples of a hard prompt are all long, so an engine that holds all of them ends last, which only a prompt much
longer than its answers is worth. A plan states the bound from simulated rounds (planner/choose/prefix_placement.py);
without `sharing` samples are spread by load alone.

Ties go to the engine that holds the prompt, then to the lowest number, so the choice is deterministic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ..machines.events import SampleKey

BLOCK_TOKENS = {"cpu": 32, "cuda": 16}
"""KV tokens in a block of an engine's cache, by kind of accelerator. On a CPU engines are built so: 32 are the fewest
for which vLLM's kernels are fast, and its own choice there, 128, lets samples of short prompts share nothing (0.32:
platforms/cpu.py). On GPUs it is vLLM's choice (config/cache.py)."""


def shared_tokens(prompt_tokens: int, block_tokens: int) -> int:
    """Tokens of a prompt whose KV its samples share on one engine: whole blocks, without the prompt's last token.

    The last token is computed for each sample anew, since its logits are what the sample begins with (vLLM,
    `KVCacheManager.get_computed_blocks`).
    """
    return (prompt_tokens - 1) // block_tokens * block_tokens


class PrefixSharing(Protocol):
    """The value of keeping a prompt's samples on one engine (`RoundPrefix` of plans/schema/levers.py)."""

    def lead(self, prompt_tokens: int) -> float:
        """Samples by which an engine that holds a prompt of so many tokens may be ahead and still get the next one."""


class Balancer:
    """Assigns a round's samples to engines, and knows where each sample runs and which prompts each engine has had."""

    def __init__(self, engines: int, sharing: PrefixSharing | None = None) -> None:
        if engines < 1:
            raise ValueError("at least one engine is needed")
        self._load = [0.0] * engines
        self._where: dict[object, tuple[int, float]] = {}
        self._sharing = sharing
        self._prompts: list[set[str]] = [set() for _ in range(engines)]

    def assign(
        self,
        key: object,
        expected_tokens: float,
        alive: set[int] | None = None,
        prompt: str = "",
        prompt_tokens: int = 1,
    ) -> int:
        """Pick an engine for `key`, a sample of `prompt` with its tokens; `alive` restricts the choice.

        Raises ValueError if none is alive.
        """
        assert key not in self._where, f"{key} already runs on engine {self._where[key][0]}"
        candidates = [e for e in range(len(self._load)) if alive is None or e in alive]
        if not candidates:
            raise ValueError("no engine is alive")
        lead = 0.0 if self._sharing is None else self._sharing.lead(prompt_tokens) * expected_tokens
        if lead > 0:
            engine = min(
                candidates,
                key=lambda e: (self._load[e], 0, e) if prompt in self._prompts[e] else (self._load[e] + lead, 1, e),
            )
        else:
            engine = min(candidates, key=lambda e: (self._load[e], e))
        self._prompts[engine].add(prompt)
        self._load[engine] += expected_tokens
        self._where[key] = (engine, expected_tokens)
        return engine

    def release(self, key: object) -> None:
        """The sample ended, was aborted or lost. Unknown keys are ignored: an abort may race an end."""
        engine, expected = self._where.pop(key, (0, 0.0))
        self._load[engine] -= expected

    def forget(self, engine: int) -> None:
        """The engine died; it holds no prompts any more."""
        self._prompts[engine].clear()

    def load(self, engine: int) -> float:
        """Outstanding tokens of an engine."""
        return self._load[engine]

    def running(self, engine: int) -> list[object]:
        """Keys assigned to an engine, in order of assignment."""
        return [key for key, (e, _) in self._where.items() if e == engine]


@dataclass(frozen=True, slots=True)
class ToPlace:
    """A sample that waits for an engine.

    Attributes:
        key: of the sample.
        prompt: its prompt.
        prompt_tokens: tokens of that.
        limit: tokens that its issue allows.
        kept: of these, tokens that another engine has decoded already.
    """

    key: SampleKey
    prompt: str
    prompt_tokens: int
    limit: int
    kept: int = 0


class SamplePlacement(Protocol):
    """Where the samples of one round decode. A sample waits, or is on one engine, until it is removed."""

    def add(self, sample: ToPlace) -> None:
        """A sample waits for an engine from now on; it is new, or was released by the engine that it was on."""

    def place(self, alive: Collection[int]) -> list[tuple[SampleKey, int]]:
        """The samples that start now, in order, each with its engine, one of those `alive`."""

    def ended(self, key: SampleKey, tokens: int) -> None:
        """The sample ended with so many tokens."""

    def remove(self, key: SampleKey) -> None:
        """The sample was aborted or lost. Unknown keys are ignored: an abort may race an end."""

    def forget(self, engine: int) -> None:
        """The engine died; it holds no prompts any more."""

    def running(self, engine: int) -> list[SampleKey]:
        """The samples on an engine, in the order in which they were placed."""


class ByLoad:
    """Each sample starts at once, on the least loaded engine or one that holds its prompt; all weigh the same."""

    def __init__(self, engines: int, sharing: PrefixSharing | None = None) -> None:
        self._balancer = Balancer(engines, sharing)
        self._waiting: dict[SampleKey, ToPlace] = {}

    def add(self, sample: ToPlace) -> None:
        """A sample waits for an engine from now on; it is new, or was released."""
        self._balancer.release(sample.key)
        self._waiting[sample.key] = sample

    def place(self, alive: Collection[int]) -> list[tuple[SampleKey, int]]:
        """All that wait, in order; none while no engine is alive."""
        if not alive:
            return []
        placed = [
            (key, self._balancer.assign(key, float(s.limit), set(alive), s.prompt, s.prompt_tokens))
            for key, s in self._waiting.items()
        ]
        self._waiting = {}
        return placed

    def ended(self, key: SampleKey, tokens: int) -> None:
        """The sample ended with so many tokens."""
        self._balancer.release(key)

    def remove(self, key: SampleKey) -> None:
        """The sample was aborted or lost."""
        self._waiting.pop(key, None)
        self._balancer.release(key)

    def forget(self, engine: int) -> None:
        """The engine died; it holds no prompts any more."""
        self._balancer.forget(engine)

    def running(self, engine: int) -> list[SampleKey]:
        """The samples on an engine, in the order in which they were placed."""
        return [key for key in self._balancer.running(engine) if isinstance(key, SampleKey)]
