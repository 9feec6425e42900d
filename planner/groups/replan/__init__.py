"""Which running jobs move, in what order, and what each move costs and saves."""
