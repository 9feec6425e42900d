"""What the group planner works on: jobs with their ways, node kinds, rules, and what of them is running."""
