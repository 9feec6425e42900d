"""What a run leaves behind, and what is read from it: the contract back from executor to planner.

trace            events as JSON Lines, written and read; run_log a run's folder and its steps
cycle_means      means over a cycle, the same for report and tune
report           the figures of `rlplan report`; report_* its parts
"""
