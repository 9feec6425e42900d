"""solve, show and simulate of a workload: many jobs that share nodes."""
