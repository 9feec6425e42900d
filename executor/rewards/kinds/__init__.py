"""Rewards that jobs name by their kind: code in a sandbox, and mathematics."""
