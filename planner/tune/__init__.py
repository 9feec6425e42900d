"""What did the run teach: costs and lengths refitted, and whether the plan should change.

tune              all of it, and the decision: a new plan's gain (planner/plan_gain.py) has to exceed the error
executed_run      a run step by step, and its rounds replayed in the simulator
refit             costs refitted: each phase a line, and the profile corrected by them
run_rates         rewards, judge and drafts, as the run counted them; run_lengths lengths that it observed
phase_attribution why a phase took longer or shorter than predicted
"""
