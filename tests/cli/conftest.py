"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from .solved_folder import write_solved


@pytest.fixture
def solved(tmp_path):
    """A folder with a job that was profiled and solved."""
    return write_solved(tmp_path)
