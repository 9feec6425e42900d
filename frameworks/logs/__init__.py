"""What runs of other trainers left behind: metrics by step, samples in dumps, and the run's folder made of them."""
