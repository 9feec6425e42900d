"""What a group means for its jobs: slowdowns in the long run, and the steady state that a plan shows."""
