"""Which engine a round's samples start on: the least loaded one, or, by history, the longest samples first.

placement          the interface of both placements, and the placement by load
longest_first      the placement by history
balance_spec       the numbers that a plan states for it, and when an engine would end its samples
length_estimates   how long samples are expected to be
"""
