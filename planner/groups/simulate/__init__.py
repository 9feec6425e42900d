"""What a group of jobs gives each of them: slowdowns in the long run, and the steady state that a plan shows."""
