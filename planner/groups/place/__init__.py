"""Policies that place jobs as they arrive: ours, and the published ones."""
