"""What is to be placed, and where: jobs with their options, node types, rules, node capacity, and running groups."""
