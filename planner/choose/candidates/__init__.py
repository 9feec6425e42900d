"""Which kinds of round are worth simulating?

solve_options    what a solve is asked for beside its documents
candidate_space  all of them, with the layouts of their updates; round_kinds what identifies one
candidate_rounds what short and long rounds issue, and where mode exact cuts
engine_layouts   layouts of engines that the pool and its memory hold
pool_choice      which pools engines and trainers are on, and jobs that are refused
reward_choices   reward workers and copies of a judge
"""
