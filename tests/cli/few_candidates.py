"""A solve in a fraction of a second: fewer candidates, and fewer rounds of each."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlplan.planner import plan_gain
from rlplan.planner.choose import candidate_search, prefix_placement
from rlplan.planner.choose.candidates import candidate_rounds, reward_choices
from rlplan.planner.choose.candidates.solve_options import Pass, SolveOptions
from rlplan.planner.explain import length_error
from rlplan.planner.refresh import refresh
from rlplan.planner.simulate.columns import column_setting, whole_columns
from rlplan.planner.tune.tune import tune

from ..planner.solutions import known_apart

FEW = (Pass(2, 1, math.inf), Pass(8, 4, 0.05))

CONSTANTS = {
    candidate_search: {"FINER": {}},
    candidate_rounds: {
        "CUTOFF_LEVELS": (0.5, 0.8), "ROW_DEVIATIONS": (1.5,), "PROMPT_FACTORS": (1.25,), "SAMPLE_FACTORS": (1.0, 1.5),
        "LONG_SHARES": (0.2,),
    },
    reward_choices: {"MOST_COPIES": 1},
    whole_columns: {"FEED": 48},
    column_setting: {"FEED": 48},
    length_error: {"TRACES": 2, "MOST": 2, "FEWEST": 2},
    prefix_placement: {"ROUNDS": 4, "SAMPLES": 1},
    plan_gain: {"_GAIN_SAMPLES": 1600, "_GAIN_STEPS": 8},
}  # fmt: skip

_KNOWN: dict[Any, Any] = {}


@contextmanager
def few_candidates() -> Iterator[None]:
    """Within the block, `solve`, `refresh` and `tune` simulate little unless they are told how much."""
    with pytest.MonkeyPatch.context() as patch, known_apart(_KNOWN):
        for module, values in CONSTANTS.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        *others, _ = SolveOptions.__init__.__defaults__
        patch.setattr(SolveOptions.__init__, "__defaults__", (*others, FEW))
        for function in (refresh, tune):
            patch.setitem(function.__kwdefaults__, "passes", FEW)
        yield
