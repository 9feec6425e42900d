"""What follows from a plan: its digests, what the solver read, bars and critical path, prices, whether it can run, and
whether it may be applied without asking."""
