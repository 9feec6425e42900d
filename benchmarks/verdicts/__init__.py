"""Tables of cases of what rewards must say of responses, and of the models that jobs name; all are judged anew.

    python -m benchmarks.verdicts [--json] [--only code]...

Each table stands in `tests/verdicts/`, a case a line, with the public data set, file format or report that its kind of
case comes from (`tests/verdicts/README.md`). Code and math rows go the way of a job: the row through `answer_of_row`
and the parser of its kind (a row that it refuses is "refused"), the response through the reward's `judge`.

- `cases`, `wrong`: of each table;
- `lines`: what is wrong, a line for each case; with any, the exit code is 1.

    {"code": {"cases": …, "wrong": 0}, "math": {"cases": …, "wrong": 0}, "models": {"cases": …, "wrong": 0},
     "lines": []}

`datasets.py` writes data sets with reference solutions for `rlplan rewards audit`; `training.py` trains on one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rlplan

FOLDER = Path(rlplan.__file__).parent / "tests" / "verdicts"


def read_cases(table: str) -> list[dict[str, Any]]:
    """The cases of a table: `code`, `math` or `models`."""
    return [json.loads(line) for line in (FOLDER / f"{table}.jsonl").read_text(encoding="utf-8").split("\n") if line]
