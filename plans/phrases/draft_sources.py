"""Where drafted tokens come from, as traces name it and as people read it."""

from __future__ import annotations

DRAFT_SOURCES = {
    "earlier": "earlier rounds",
    "ahead": "decoded ahead",
    "sibling": "samples beside it",
    "own": "its own text",
    "other": "other prompts",
}
"""By a source's name in a trace: responses to the prompt of earlier rounds, those that were decoded for drafts alone,
another sample of the prompt in this round, the sample itself, responses to other prompts."""


def source_text(source: str) -> str:
    """A source as people read it; one of another version as it is."""
    return DRAFT_SOURCES.get(source, source)
