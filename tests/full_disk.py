"""A disk that is full, for tests of what writes files."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(room_bytes: int = 0) -> Iterator[None]:
    """No file grows beyond `room_bytes`: of a write that would, the kernel takes the first part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
