"""Amounts as messages say them, in a unit that fits their size."""

from __future__ import annotations

_BYTES = (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def bytes_text(size: float) -> str:
    """Bytes to four figures in decimal units: 80 MB, 76.5 GB, 2 TB. Never 0 for what is above it."""
    name, unit = next((pair for pair in _BYTES if size >= pair[1]), ("bytes", 1.0))
    return f"{size / unit:.4g} {name}"
