"""Which node and which devices each actor of a run has: planned as data, then found on the nodes of a Ray cluster."""
