"""Of all tests: hypothesis' profiles, and how many engines a run of pytest starts.

`make test` draws the same examples on every machine, `make search` draws new ones. Neither has a deadline, since an
example takes longer where other work shares the cores.
"""

import contextlib
import importlib.util
import threading

import pytest
from hypothesis import settings

# Tests of what the planner alone is installed without.
collect_ignore = [] if importlib.util.find_spec("vllm") else ["benchmarks", "executor", "profiles/measure"]
collect_ignore += [] if importlib.util.find_spec("trl") else ["frameworks/trl"]

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")

LOOK_S = 0.5  # an engine's process lives for seconds at least, and many times as long as this if it comes up


class EngineStarts:
    """Counts processes of engines below this one, whoever starts them: Ray gives each engine a process of its own."""

    def __init__(self) -> None:
        import psutil  # here, since it comes with the executor

        self._psutil = psutil
        self._seen: set[tuple[int, float]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            for process in self._psutil.Process().children(recursive=True):
                with contextlib.suppress(self._psutil.Error):
                    if process.name().startswith("ray::RolloutEng"):  # Linux keeps 15 letters of a name
                        self._seen.add((process.pid, process.create_time()))

    def end(self) -> int:
        """Stop counting; returns how many there were."""
        self._ended.set()
        self._thread.join()
        return len(self._seen)


@pytest.fixture(scope="session", autouse=True)
def engine_starts(request: pytest.FixtureRequest, record_testsuite_property):
    """Puts the number of engines that were started into pytest's report, where it is read by benchmarks.suite."""
    if not any(item.get_closest_marker("engine") for item in request.session.items):
        yield
        return
    starts = EngineStarts()
    yield
    record_testsuite_property("engine_starts", starts.end())
