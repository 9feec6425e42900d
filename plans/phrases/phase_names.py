"""What phases are called in prose, the same on the screen, on pages, in `why` and in `diff`.

Keys of documents are not shown to people: the key `sync` of a phase would be taken for mode sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .numbers import count, is_finite, ratio, seconds

PHASE_NAMES = {
    "sync": "weight transfer",
    "rollout": "rollout",
    "reward_exposed": "waiting for rewards",
    "reward": "waiting for rewards",
    "scoring": "scoring",
    "train": "training",
    "switch": "change of engines",
    "other": "other",
    "step": "step",
}
"""Name of each phase, by its key."""


def exposed_text(beside: Mapping[str, Any]) -> str:
    """Return what of scoring and training a run's decoding does not hide (traces/report_rounds.py), and what it would
    be if it hid nothing, where that differs."""
    (waits, alone_waits), (trains, alone_trains) = (
        (seconds(beside[key]["exposed_s"]), seconds(beside[key]["alone_s"])) for key in ("reward", "train")
    )
    text = f"after decoding, a step waits {waits} for rewards and trains for {trains}"
    if (waits, trains) == (alone_waits, alone_trains):
        return text
    return f"{text}; {alone_waits} and {alone_trains} if neither ran beside decoding"


def as_trained_text(detail: Mapping[str, Any]) -> str:
    """Return what a run's length ratio is without the prompts that it owes, which the ratio itself imputes; empty if
    it owes none. `detail`: its part of a report (traces/report.py)."""
    if not detail.get("owed_prompts") or not is_finite(detail.get("length_ratio_as_trained")):
        return ""
    owed = count(detail["owed_prompts"], "deferred prompt")
    return f"; {ratio(detail['length_ratio_as_trained'])} as trained, without {owed} that a long round would train"
