"""Jobs of a co-execution group that run as one: permits on the real clock, and a driver process for each job."""
