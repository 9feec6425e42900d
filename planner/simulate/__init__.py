"""What would a round, or a whole run, take.

one_round        a round from arrays of draws: compiled (compiled_round), or by the reference
reference_round  a round on a virtual clock by the machines of rounds/; its engines are those of reference_engine
whole_run        rounds as they come, as the executor has them; run_summary, run_timeline what such a run looks like
reward_deadlines, streamed_updates   what adaptive deadlines, and engines that are handed over, change
calibrate        real rounds against the simulator
columns/         many rounds of one kind, which candidates are judged by
"""
