"""What did the run teach: costs and lengths refitted, and whether the plan should change.

tune             all of it, and the decision
executed_run     a run step by step, and its rounds replayed in the simulator
refit            costs refitted; fitted_line one phase as a line, profile_correction layouts that were not run
run_lengths      lengths that the run observed
phase_attribution why a phase took longer or shorter than predicted
plan_gain, model_error   what a new plan gains, and what that gain has to exceed
"""
