"""What is wrong with a trainer's set-up, in any framework: memory by phase, clashes, seconds, better placements."""
