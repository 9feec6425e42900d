"""How long will responses be: from a length trace, or a table, to draws of simulated prompts.

length_model     a trace as a distribution of fresh lengths, built from length_tail and length_windows
length_cautions  what a reader must know of it before trusting a plan
length_drift     how lengths move with training
length_history   what mode predict has seen of a simulated prompt
table_lengths    a trace drawn from a table of quantiles, by the distribution of copula_lengths
draws            the same prompt drawn the k-th time has the same lengths for every candidate
loss_divisors    samples and tokens of a plain step, which losses are divided by
"""
