"""What phases are called in prose, the same on the screen, on pages, in `why` and in `diff`.

Keys of documents are not shown to people: the key `sync` of a phase would be taken for mode sync.
"""

from __future__ import annotations

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
