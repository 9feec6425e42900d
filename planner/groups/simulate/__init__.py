"""What does a group give its jobs: slowdowns in the long run, and the steady state that a plan shows."""
