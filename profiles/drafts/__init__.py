"""Speculative decoding in a profile: what drafts give and take.

draft_schema   the section of a profile
draft_law      tokens and seconds of a step with drafts, as the planner asks for them
draft_counts   what rounds counted, of a profiling or of a run, fitted to the section
"""
