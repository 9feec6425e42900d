"""What a row's answer is, read once when data are read: tests of code by their form, mathematics by its type.

Pure text: nothing here runs a response or a test, so that `check` and `solve` read rows as the reward will.
"""

from __future__ import annotations


class AnswerError(ValueError):
    """The row's answer cannot be scored against; one line: what is wrong; what to do."""
