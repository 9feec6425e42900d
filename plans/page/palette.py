"""Colours: one for each phase, mode and job, the same in every chart; and those that depend on the reader's theme.

The first five are stand-ins, which page.js replaces by the colours of the light or dark theme (page.css) before it
draws. The others are legible on both.
"""

from __future__ import annotations

from collections.abc import Iterable

INK, MUTED, TRACK, PANEL, LINE = "#010101", "#020202", "#030303", "#040404", "#050505"
STAND_INS = {INK: "ink", MUTED: "muted", TRACK: "track", PANEL: "panel", LINE: "line"}
"""Names of the stand-ins in the style sheet."""
CLEAR = "rgba(0,0,0,0)"

PHASE = {
    "sync": "#8b6fd0",
    "rollout": "#3f84d6",
    "tail": "#3f84d6",
    "scoring": "#dc9a2e",
    "reward_exposed": "#dc9a2e",
    "train": "#36a06c",
    "other": "#8b95a3",
    "step": "#6c7887",
}

MODE = {"sync": "#7f8b99", "exact": "#1d9bb8", "defer": "#d9822b", "race": "#d4574e", "predict": "#8a63c9"}

_JOBS = ("#2a9bb5", "#c05fa8", "#cf9a2b", "#45a163", "#4d7fd6", "#d2625b", "#7a8796", "#9a74d8", "#8a9a2e", "#b8775a")
"""As in the terminal: cyan, magenta, yellow, green, blue, red; then four more."""

SOURCE = {"earlier": "#3f84d6", "ahead": "#8b6fd0", "sibling": "#36a06c", "own": "#dc9a2e", "other": "#8b95a3"}
"""Of accepted drafts, by where they come from."""

GOOD, BAD = "#36a06c", "#d4574e"


def job_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each job, by order."""
    return {name: _JOBS[index % len(_JOBS)] for index, name in enumerate(names)}


def run_colours(modes: dict[str, str]) -> dict[str, str]:
    """Return a colour for each run: its mode's; if several runs have one mode, a job's colour for the later ones."""
    colours: dict[str, str] = {}
    for index, (name, mode) in enumerate(modes.items()):
        colour = MODE.get(mode, _JOBS[index % len(_JOBS)])
        colours[name] = colour if colour not in colours.values() else _JOBS[index % len(_JOBS)]
    return colours


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.1, contrast ratio)."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def text_on(colour: str) -> str:
    """Return black or white, whichever is read more easily on a colour."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def faded(colour: str, share: float) -> str:
    """Return a colour of the palette with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:g})"
