"""What follows from a plan: its digests, what the solver read, bars and critical path, prices, whether it can run."""
