"""From a job's `reward` section to a callable that scores one response.

A reward function has the signature `score(prompt: str, response: str, answer: Any) -> float`; those of TRL and of verl,
and async ones, are called as they are written (kinds/function_reward.py). To say that the response itself is at fault
(reward 0) it may raise `PolicyError` or `PolicyTimeout`; to say that it cannot be, because the row or a machine is,
`InfrastructureError`: the call is repeated, and then the sample is drawn again.

Any other exception that repeated calls raise again is put down to the response, as long as the function still scores
others: reward 0, `function_error` in trace and report. If the sample were dropped instead, it would be drawn again
until the function does not raise, and training would see only such responses. A run in which nearly all fail ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ...plans.yaml.errors import InputError
from .sandbox.verdict import MEMORY_BYTES, Verdict
from .sandbox.verdict import InfrastructureError as InfrastructureError  # a user's function imports them from here
from .sandbox.verdict import PolicyError as PolicyError
from .sandbox.verdict import PolicyTimeout as PolicyTimeout
from .sandbox.verdict import RowError as RowError

if TYPE_CHECKING:  # the process that scores starts without the documents' schemas, in a quarter of the time
    from ...plans.schema.job import JobPaths, RewardSpec

RewardFunction = Callable[[str, str, Any], float]
Judge = Callable[[str, str, Any], Verdict]
"""A reward function that also tells how it came to the reward."""

REWARD_KINDS = ("function", "math", "code", "format")


@dataclass(frozen=True)
class ScorerConfig:
    """How responses are scored: the job's reward section, as plain data that Ray and JSON carry.

    Attributes:
        reward_kind: `function`, `math`, `code` or `format`.
        function: dotted path `pkg.mod:name` where `reward_kind` is `function`, else None.
        deadline_s: seconds of wall time for one response, at most.
        search_path: folder, usually the job file's, that is searched for the module before the rest of `sys.path`.
        memory_bytes: address space that scoring one response may take; of other kinds than `code` it is counted beyond
            what the function's imports take.
        pattern: regular expression where `reward_kind` is `format`, else None.
        packages: distributions that code and its tests may import where `reward_kind` is `code`.
        partial: of `code`, whether a response is worth the share of tests that it passes.
        sandbox: of `code`, `required` or `optional`: whether it runs where the host cannot hold it.
        environment: names of variables that the process that scores has beside those of `worker.INHERITED`.
    """

    reward_kind: str
    function: str | None
    deadline_s: float
    search_path: str | None = None
    memory_bytes: int = MEMORY_BYTES
    pattern: str | None = None
    packages: tuple[str, ...] = ()
    partial: bool = False
    sandbox: str = "required"
    environment: tuple[str, ...] = ()

    @classmethod
    def of_part(cls, part: RewardSpec, paths: JobPaths, deadline_s: float) -> ScorerConfig:
        """The configuration of a part of a job's reward, with `deadline_s` as the longest deadline of a sample."""
        return cls(
            reward_kind=part.kind,
            function=part.function,
            deadline_s=deadline_s,
            search_path=str(paths.reward_folder.resolve()),
            memory_bytes=part.memory_bytes or MEMORY_BYTES,
            pattern=part.pattern,
            packages=part.packages,
            partial=part.partial,
            sandbox=part.sandbox,
            environment=part.environment,
        )


@dataclass(frozen=True)
class ReadyReward:
    """A reward ready to be called."""

    within: Callable[[float], RewardFunction]
    """From a deadline in seconds to the function that keeps it; one that cannot is left to the worker's alarm."""
    margin_s: float = 0.0
    """Seconds of wall time beyond the deadline after which the worker interrupts a call and blames the response."""
    notes: tuple[str, ...] = ()
    """What this machine lacks of what should hold a response."""
    judge_within: Callable[[float], Judge] = field(kw_only=True)
    """As `within`, to the function that also tells how it came to the reward."""


def resolve(config: ScorerConfig) -> ReadyReward:
    """Turn the reward section of a job into a `ReadyReward`.

    Raises `InputError` if the kind is unknown, the function cannot be imported or called, a package is missing, or this
    host cannot hold the code that it runs.
    """
    reward_kind = config.reward_kind
    if reward_kind == "function":
        from .kinds.function_reward import own_function

        own = own_function(config.function, config.search_path)
        return ReadyReward(lambda _: own, judge_within=lambda _: own.judge)
    if reward_kind == "math":
        try:
            from .kinds.math_reward import judge, score
        except ImportError as error:
            raise InputError(f"reward.kind math needs math-verify ({error}); run: pip install math-verify") from error
        return ReadyReward(lambda _: score, judge_within=lambda _: judge)
    if reward_kind == "format":
        from .kinds.format_reward import FormatReward

        assert config.pattern is not None, "the job's schema demands it"
        matches = FormatReward(config.pattern)
        return ReadyReward(lambda _: matches, judge_within=lambda _: matches.judge)
    if reward_kind == "code":
        from .kinds.code_reward import START_S, CodeReward, probe

        notes = probe(config.memory_bytes, config.packages, config.sandbox)
        # The sandbox keeps the response's deadline itself and needs time around it to start and to clean up.
        sandboxed = partial(
            CodeReward, memory_bytes=config.memory_bytes, packages=config.packages, partial=config.partial
        )
        return ReadyReward(sandboxed, START_S + 1.0, notes, judge_within=lambda within_s: sandboxed(within_s).judge)
    raise InputError(f"reward.kind is {reward_kind!r}; use one of {', '.join(REWARD_KINDS)}")
