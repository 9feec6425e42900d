"""What a run writes down: its trace, its checkpoints and what they are made of, its lock."""
