"""Who holds which units of a co-execution group, and when: the permit machine, its events and its rules."""
