"""A judge: a model that reads each response and gives a verdict; its value is a part of the reward.

`judge_prompt` makes what it reads and says what it may write, `judge_pool` has samples judged on its engines.
"""
