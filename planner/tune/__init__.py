"""What did the run teach: costs and lengths refitted, and whether the plan should change.

executed_run     a run step by step, and its rounds replayed in the simulator
refit            costs refitted; fitted_line a measured cost as a line in the expected one, profile_correction what was
                 not run
run_lengths      lengths that a run measured
phase_attribution why a phase took what it took
tune             all of it, and the decision
"""
