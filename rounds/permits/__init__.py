"""The permit machine, its events and its rules: which job holds which units of a co-execution group, and when."""
