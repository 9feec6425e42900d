"""Runs of a folder, all of which must be readable."""

from pathlib import Path

from rlplan.traces.run_log import Run, readable_runs


def load_runs(folder: Path) -> list[Run]:
    """The run in `folder`, or the runs in its sub-folders. Raises InputError if there is none or one is damaged."""
    runs, refused = readable_runs(folder)
    if refused:
        raise next(iter(refused.values()))
    return runs
