"""How tests are shared out when several processes run them (`make test` has two)."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a file's tests in one process, so that its fixtures are made once, and all of the executor's in one.

    Those share engines, whose start is most of their cost.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "executor" if file.startswith("tests/executor/") else file

    return ByFile(config, log)
