"""What is to be placed, and where: jobs with their ways, node types and rules, node capacity, and the groups that
run."""
