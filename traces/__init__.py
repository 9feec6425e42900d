"""The files that a run writes, and the figures that are read from them: the contract back from executor to planner.

trace           JSON Lines, written and read; trace_events their types
run_log         a run's folder: its plan, its steps, the samples of each step (sample_columns), all other events
cycle_means     mean seconds over a cycle, the same for report and tune
report          the figures of `rlplan report`: report_steps of steps, report_rounds of what is in a round,
                report_state how a run stands and what went wrong in it
"""
