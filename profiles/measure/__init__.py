"""`rlplan profile` on hardware: rounds, decode steps, engine starts and updates by the executor's own workers."""
