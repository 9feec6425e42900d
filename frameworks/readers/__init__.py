"""Configurations of other trainers, and ours, read into a TrainerSetup; nothing of them is run."""
