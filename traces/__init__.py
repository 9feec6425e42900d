"""The files that a run writes, and the figures that are read from them: the contract back from executor to planner.

trace            events as JSON Lines, written and read; run_log reads a run's folder and its steps
cycle_means      mean seconds over a cycle, the same for report and tune
report           the figures of `rlplan report`; report_* holds their parts
"""
