"""Which engine a sample goes to: least loaded by outstanding tokens.

Outstanding tokens are the sum over an engine's running samples of what each may still generate at most, as expected
by its issue (`expected_tokens`, not the cap: with caps every sample weighs the same and the rule would count requests).
Ties go to the lowest engine number, so the choice is deterministic.
"""

from __future__ import annotations


class Balancer:
    """Assigns samples to engines and remembers who runs where."""

    def __init__(self, engines: int) -> None:
        if engines < 1:
            raise ValueError("at least one engine is needed")
        self._load = [0.0] * engines
        self._where: dict[object, tuple[int, float]] = {}

    def assign(self, key: object, expected_tokens: float, alive: set[int] | None = None) -> int:
        """Pick an engine for `key`; `alive` restricts the choice. Raises ValueError if none is alive."""
        assert key not in self._where, f"{key} already runs on engine {self._where[key][0]}"
        candidates = [e for e in range(len(self._load)) if alive is None or e in alive]
        if not candidates:
            raise ValueError("no engine is alive")
        engine = min(candidates, key=lambda e: (self._load[e], e))
        self._load[engine] += expected_tokens
        self._where[key] = (engine, expected_tokens)
        return engine

    def release(self, key: object) -> None:
        """The sample ended, was aborted or lost. Unknown keys are ignored: an abort may race an end."""
        engine, expected = self._where.pop(key, (0, 0.0))
        self._load[engine] -= expected

    def load(self, engine: int) -> float:
        """Outstanding tokens of an engine."""
        return self._load[engine]

    def running(self, engine: int) -> list[object]:
        """Keys assigned to an engine, in order of assignment."""
        return [key for key, (e, _) in self._where.items() if e == engine]
