"""Sections that documents hold: an algorithm, data, levers, origin, evidence of lengths, a group of jobs."""
