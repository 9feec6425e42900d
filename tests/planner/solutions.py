"""Solved jobs of the planner's tests: what several tests solve is solved once."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import pytest

from rlplan.planner.choose.candidates.solve_options import Pass, SolveOptions
from rlplan.planner.explain import length_error
from rlplan.planner.solve import Solved, solve
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.profile_schema import Profile

from .conftest import heavy_trace, laptop, small_job, small_profile, some_inputs

Result = TypeVar("Result")

SMALL = {"prompts_per_step": 8, "samples_per_prompt": 4}
QUICK = (Pass(4, 2, math.inf), Pass(16, 8, 0.05))
"""Fewer rounds than `rlplan solve` simulates: a solve in about a second."""


@contextmanager
def few_prompt_sets(sets: int = 4) -> Iterator[None]:
    """The error that a trace's prompts leave is told by so many sets of them, where 32 take two thirds of a solve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length_error, "TRACES", sets)
        patch.setattr(length_error, "MOST", min(sets, length_error.MOST))
        yield


_KNOWN: dict[Any, Any] = {}


@contextmanager
def known_apart(known: dict[Any, Any]) -> Iterator[None]:
    """Within the block, what is solved once is kept in `known`: for blocks that solve with other constants."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "_KNOWN", known)
        yield


def _known(key: Any, make: Callable[[], Result]) -> Result:
    """What is known by this key; made now if nothing is."""
    if key not in _KNOWN:
        _KNOWN[key] = make()
    found: Result = _KNOWN[key]
    return found


def once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Like functools.cache, within one set of constants."""

    @wraps(function)
    def kept(*arguments: Any, **options: Any) -> Result:
        return _known((function, arguments, *sorted(options.items())), lambda: function(*arguments, **options))

    return kept


def eight_by_four(tp: tuple[int, ...] = (1, 2), tokens: tuple[int, ...] = (2048, 4096), **changes: Any) -> Job:
    """A job of 8 prompts x 4 samples a step that leaves these sizes of engines and micro-batches to the solver."""
    return small_job(SMALL, **{"search": {"tp": tp, "micro_batch_tokens": tokens}, **changes})


def solve_afresh(
    job: Job | None = None,
    *,
    cluster: Cluster | None = None,
    profile: Profile | None = None,
    trace: LengthTrace | None = None,
    prompt_sets: int = 4,
    **options: Any,
) -> Solved:
    """A job, by default 8 x 4, on the small machine unless another is named; `options` are those of the solver."""
    documents = cluster or laptop(), job or eight_by_four(), profile or small_profile(), trace or heavy_trace()
    with few_prompt_sets(prompt_sets):
        return solve(*documents, some_inputs(), SolveOptions(**{"passes": QUICK, **options}))


def solution(job: Job | None = None, **given: Any) -> Solved:
    """The same, solved once for all tests, which change nothing in it."""
    traced = {name: repr(value.rows) if name == "trace" and value else repr(value) for name, value in given.items()}
    key = (repr(job), *(f"{name} {traced[name]}" for name in sorted(traced)))
    return _known(key, lambda: solve_afresh(job, **given))
