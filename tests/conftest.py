"""Hypothesis profiles: `make test` draws the same examples on every machine, `make search` draws new ones.

Neither has a deadline, since an example takes longer where other work shares the cores.
"""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")
