"""Carries out a new plan of groups while jobs run: which jobs leave, move and join, in which order, and the journal."""
