"""A judge: a model that reads each response and gives a verdict; its value is a part of the reward.

`judge_pool` has samples judged on its engines; what it reads and may write: plans/files/judge_prompt.py.
"""
