"""Hypothesis profiles: `make test` draws the same examples on every machine, `make search` draws new ones."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.register_profile("search", derandomize=False, print_blob=True)
settings.load_profile("repeatable")
