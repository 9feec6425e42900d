"""Text that is safe and short enough for one line, and lists and sentences made of fragments."""

from __future__ import annotations

from collections.abc import Iterable


def one_line(text: str) -> str:
    """Return text without line breaks and without characters that a terminal would take for a command."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, width: int) -> str:
    """Return text on one line, cut to at most `width` characters."""
    text = one_line(text)
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def sentence(text: str) -> str:
    """Return text as a sentence: with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def listed(phrases: Iterable[str]) -> str:
    """Return phrases as a list: `a, b and c`."""
    *first, last = list(phrases) or [""]
    return f"{', '.join(first)} and {last}" if first else last
