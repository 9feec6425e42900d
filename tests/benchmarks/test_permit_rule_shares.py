"""benchmarks.permit_rule_shares: shares of random groups by permit rule."""

from __future__ import annotations

import json

from click.testing import CliRunner

from benchmarks.permit_rule_shares import VARIANTS, main, random_groups


def test_the_json_is_one_line_and_a_permit_rule_with_more_freedom_runs_more_groups() -> None:
    done = CliRunner().invoke(main, ["--groups", "400", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert len(done.output.splitlines()) == 1
    assert list(found["share"]) == list(VARIANTS)
    shares = list(found["share"].values())
    assert shares == sorted(shares)
    assert 0 < found["could_hold"] <= found["groups"] == 400


def test_the_same_seed_gives_the_same_groups() -> None:
    assert random_groups(20, 3, 0.1) == random_groups(20, 3, 0.1)
    assert random_groups(20, 3, 0.0) != random_groups(20, 4, 0.0)
