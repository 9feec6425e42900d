"""How the functions of rounds/compiled are compiled by numba.

Invariants:
- no fast-math and no parallel loops: the floats are those of the reference, bit for bit;
- nothing in the kernel allocates, so reference counting is off, which alone makes it several times faster;
- only the entry is cached on disk, under a key that covers the source of the whole package, because numba looks for
  changes in an entry's own file only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])

_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False, "error_model": "numpy"}


def compiled(function: F) -> F:
    """Compile a function that only compiled functions call."""
    # Wrappers for Python would be most of what there is to compile.
    made: F = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)
    return made


def entry(function: F) -> F:
    """Compile a function that Python calls; the machine code is kept on disk where some cache folder is writable."""
    try:
        made: F = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # numba: "cannot cache function: no locator available"
        made = numba.njit(**_OPTIONS)(function)
    return made


def sources_digest(*extra_sources: Path) -> str:
    """Digest of all compiled source files: those of this package, and `extra_sources` in the order given."""
    digest = hashlib.sha256()
    for path in [*sorted(Path(__file__).parent.glob("*.py")), *extra_sources]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
