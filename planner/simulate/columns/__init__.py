"""Many simulated rounds of one kind: what a candidate costs and moves.

column_setting   what all columns of a solve share
whole_columns    rounds that are simulated whole; queue_rounds what waits for long ones, round_log what they took
step_noise       how one step's seconds scatter about their mean
cells            parts that stand for a large round; composed_columns rounds composed of them
cell_columns     which rounds are simulated by cells
"""
