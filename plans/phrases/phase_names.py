"""What phases and resources are called in prose, the same on the screen, on pages, in `why` and in `diff`.

Keys of documents are other names: the key `sync` of a phase is no word for people, since mode sync is another thing.
"""

from __future__ import annotations

PHASE_NAMES = {
    "sync": "weight transfer",
    "rollout": "rollout",
    "reward_exposed": "waiting for rewards",
    "reward": "waiting for rewards",
    "train": "training",
    "switch": "change of engines",
    "other": "other",
    "step": "step",
}
"""By the key of a phase."""

RESOURCE_NAMES = {
    "sync": "weight transfer",
    "engines": "engines",
    "rewards": "the scores of all samples but those decoded last",
    "trainers": "trainers",
}
"""By the resource of critical_path.py: what of it may have time to spare."""
