"""Which kinds of round are worth simulating?

candidate_space  all of them; round_kinds what identifies one
short_rounds, cutoffs   what short rounds issue, and where mode exact cuts
engine_layouts, update_layouts   layouts that the pool and its memory hold
pool_choice      which pools engines and trainers are on
job_limits, prompt_supply   jobs that are refused, and data that is too small
balance_numbers  what balanced rounds are balanced by
"""
