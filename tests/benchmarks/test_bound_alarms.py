"""benchmarks.bound_alarms: alarms of simulated groups."""

from __future__ import annotations

import json

from click.testing import CliRunner

from benchmarks.bound_alarms import DRIFTS, main


def test_the_json_is_one_line_and_most_broken_bounds_are_told_before() -> None:
    done = CliRunner().invoke(main, ["--draws", "4", "--json"])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == 1
    found = json.loads(done.output)
    assert found["kept"]["jobs"] == 4 * 5 and found["kept"]["in_alarm"] < 0.2
    assert [(row["factor"], row["after"]) for row in found["drift"]] == list(DRIFTS)
    broken, told = (sum(row[key] for row in found["drift"]) for key in ("broken", "told"))
    assert broken >= 10 and told >= 0.8 * broken
