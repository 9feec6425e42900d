"""Speculative decoding: how long a draft may be, by what earlier drafts cost and gained.

acceptance       how often drafts of a kind are accepted
draft_account    seconds of steps with and without drafts, and whether drafts pay
run_ahead        samples that are decoded ahead to have drafts for rounds to come
"""
