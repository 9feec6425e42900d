"""Fixtures of the command line's tests."""

from __future__ import annotations

import shutil

import pytest

from .solved_folder import write_solved


@pytest.fixture(scope="session")
def solved_once(tmp_path_factory):
    """A folder with a job that was profiled and solved; nobody changes it."""
    return write_solved(tmp_path_factory.mktemp("solved"))


@pytest.fixture
def solved(solved_once, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(solved_once, tmp_path, dirs_exist_ok=True)
