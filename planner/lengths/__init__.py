"""How long will responses be: from a length trace, or a table, to draws of simulated prompts.

length_model     a trace as a law of fresh lengths; its parts are length_tail and length_windows
length_cautions  what a reader must know of it before trusting a plan
length_drift     how lengths move with training
length_history   what mode predict has seen of a simulated prompt
table_lengths    a trace drawn from a table of quantiles; copula_lengths the law that it is drawn by
draws            the same prompt drawn the k-th time has the same lengths for every candidate
loss_divisors    samples and tokens of a plain step, which losses are divided by
"""
