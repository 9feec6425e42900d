"""How long a draft may be, by what drafts have cost and given so far (speculative decoding).

acceptance       how often drafts of a kind were accepted
draft_account    what a step takes with and without drafts, and whether drafts pay at all
"""
