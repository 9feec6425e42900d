"""The permit machine, its events and rules: which job holds which units of a co-execution group, and when; the move
machine, by which jobs change groups; the bound machine, which warns before a job breaks its bound."""
