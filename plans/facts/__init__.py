"""What follows from a plan: its digests, bars, critical path, whether it can run, and what is said of it in words."""
