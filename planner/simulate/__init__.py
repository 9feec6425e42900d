"""What would a round, or a whole run, take.

one_round        a round from arrays of draws, in the compiled kernel or by the machines
reference_round  a round on a virtual clock by the machines of rounds/; its engines are those of reference_engine
whole_run        rounds as they come, as the executor has them; run_summary, run_timeline its results
streamed_updates what trainers do before the round's end
calibrate        real rounds against the simulator
columns/         many rounds of one kind, which candidates are judged by
"""
