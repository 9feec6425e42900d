"""How tests are shared out when several processes run them (`make test` has two)."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests in one process, so that its fixtures are made once, and all that start engines in another.

    Engines are shared by a whole session and want cores of their own beside nothing but light tests.
    """
    for item in items:
        engines = item.get_closest_marker("engine") is not None
        item.add_marker(pytest.mark.xdist_group("engines" if engines else str(item.path)))
