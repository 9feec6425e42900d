"""Many simulated rounds of one kind: what a candidate costs and moves.

column_setting   what all columns of a solve share
whole_columns    rounds that are simulated whole; round_log what they took
cells            parts that stand for a large round; cell_columns which rounds are simulated by them
composed_columns, race_cells, exact_cells, composed_log   large rounds composed of their cells
"""
