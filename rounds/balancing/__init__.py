"""Which engine a round's samples start on: by load, or longest expected first.

placement          what a round asks of either way, and the way by load
balance_spec       the numbers of the way by history that a plan states, and when an engine would end
length_estimates   how long samples are expected to be
longest_first      the way by history
"""
