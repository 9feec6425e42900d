"""What a run writes down: its trace, its checkpoints, its lock."""
