"""How a run stands and what went wrong in it: on events made by hand."""

import math
from pathlib import Path

from rlplan.traces.report_state import ago, incidents, run_state

from ..golden import cases_in, compact, same_as_golden
from .events import step_of

RUN = {"event": "run", "t_s": 0.0, "steps": 40}
RESUME = {"event": "resume", "t_s": 9.0, "step": 2, "steps": 50}


def end(**fields):
    return {"event": "end", "t_s": 8.0, "step": 3, "finished": False, **fields}


def steps(number, **changes):
    calm = {"on_policy_violations": 0, "checksum_mismatches": 0, "exhausted": 0, "reward_mean": 0.5}
    return [step_of(i + 1, **{"t_s": float(i + 1), "total_s": 1.0 + i, **calm, **changes}) for i in range(number)]


def test_how_a_run_stands_and_what_went_wrong_in_words():
    """golden/state.txt has pairs of events and how many steps ended; below each what is told."""
    file, lines = Path(__file__).parent / "golden" / "state.txt", []
    for events, done in cases_in(file):
        found = run_state(events, steps(done), 12.0, 20.0)
        # What is written down holds no time that passes.
        assert found | {"quiet_s": 0} == run_state(events, steps(done), 12.0, 99.0) | {"quiet_s": 0}
        lines += [compact([events, done]), *(f"  {compact(row)}" for row in (found, *incidents(events, steps(done))))]
    same_as_golden(lines, file)
    assert run_state([RUN], [], None, 99.0)["quiet_s"] is None
    assert run_state([RUN], [], 12.0, 11.0)["quiet_s"] == 0.0, "clocks of two hosts differ"


def test_times_are_told_in_one_unit():
    assert [ago(s) for s in (0.4, 119, 120, 7200, 172_800)] == ["0 s", "119 s", "2 minutes", "2 hours", "2 days"]


def test_incidents_come_in_order_of_time_with_their_steps():
    assert incidents([RUN, end(finished=True)], steps(3, timeouts={"timeouts": 0})) == []
    ran = steps(4)
    ran[1].restarts, ran[1].timeouts = ["engine 1 died"], {"timeouts": 3, "cut": 1, "executions": 20}
    ran[2].timeouts, ran[2].conservation_violations = {"timeouts": 3, "cut": 1, "executions": 30}, ["2 lost"]
    ran[3].timeouts, ran[3].checksum_mismatches = {"timeouts": 5, "cut": 1, "executions": 40}, 1
    ran[3].exhausted = 2
    events = [
        RUN, {"event": "restart", "t_s": 2.5, "whom": "trainer a", "reason": "killed"}, {**RESUME, "t_s": 2.6},
        {"event": "restart", "t_s": 0.5}, {"event": "restart", "t_s": 3.0},
    ]  # fmt: skip
    found = incidents(events, ran)
    assert [(row["t_s"], row["step"], row["kind"]) for row in found] == [
        (0.5, 1, "restart"), (2.0, 2, "restart"), (2.0, 2, "timeouts"), (2.5, 3, "restart"), (2.6, 2, "resume"),
        (3.0, 4, "restart"), (3.0, 3, "conservation"), (4.0, 4, "checksum"), (4.0, 4, "exhausted"),
        (4.0, 4, "timeouts"),
    ]  # fmt: skip
    texts = [row["text"] for row in found if row["kind"] == "timeouts"]
    assert texts == ["3 of 20 rewards timed out, 1 of them by a deadline that adapts", "2 of 10 rewards timed out"]


def test_figures_that_turn_to_no_numbers_are_one_incident():
    ran = steps(5, reward_mean=0.5, metrics={"loss": 1.0})
    for number in (1, 2, 4):
        ran[number].reward_mean, ran[number].metrics = math.nan, {"loss": math.inf}
    ran[4].metrics["skipped"] = 1.0
    [found] = incidents([RUN], ran)
    assert (found["step"], found["kind"]) == (2, "not a number")
    assert found["text"] == "from this step on: loss, reward_mean; training may have diverged"
