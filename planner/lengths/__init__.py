"""How long will responses be: from a length trace, or a table, to draws of simulated prompts.

length_model     a trace as a distribution of fresh lengths; length_fit what its log lengths say, and how they drift
table_lengths    a trace drawn from a table of quantiles
draws            the same prompt drawn the k-th time has the same lengths for every candidate; an epoch before it
loss_divisors    samples and tokens of a plain step, which losses are divided by
"""
