"""What a disk refuses, told as one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ...plans.yaml.errors import RunFailed


@contextlib.contextmanager
def written(path: Path, then: str = "start again") -> Iterator[None]:
    """The block writes at `path`. Raises RunFailed for an OSError: make room, and `then` what to do."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise RunFailed(f"{path} cannot be written ({why}); make room, then {then}") from error
