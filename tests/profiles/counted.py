"""What rounds count whose drafts follow a law."""

from collections.abc import Callable

from rlplan.profiles.draft_schema import DraftLaw
from rlplan.profiles.laws.draft_counts import BatchCounts, DraftCounts

PLAIN = 0.010, 0.0002  # seconds of a step, and for each sample


def base_s(batch: float) -> float:
    """Seconds of a step without drafts."""
    return PLAIN[0] + PLAIN[1] * batch


def counts_of(law: DraftLaw, batches: dict[int, int], plain_s: Callable[[float], float] = base_s) -> DraftCounts:
    """What rounds of this law count: by class of batches, named by its largest, steps times samples."""
    ones = {}
    drafted, accepted = [0.0] * law.most_tokens, [0.0] * law.most_tokens
    for largest, steps in batches.items():
        batch = max(1, round(0.75 * largest)) if largest > 1 else 1
        per_place = [
            (law.verified(g, batch) - law.verified(g - 1, batch), law.emitted(g, batch) - law.emitted(g - 1, batch))
            for g in range(1, law.most_tokens + 1)
        ]
        for place, (one, other) in enumerate(per_place):
            drafted[place] += steps * one
            accepted[place] += steps * other
        verified, emitted = law.verified(law.most_tokens, batch) - 1, law.emitted(law.most_tokens, batch) - 1
        drafted_s = plain_s(batch * (1 + verified)) + law.extra_s(batch)
        ones[largest] = BatchCounts(
            plain_s(batch), drafted_s, steps, steps, round(steps * verified), round(steps * emitted)
        )
    return DraftCounts(sum(batches.values()), tuple(map(round, drafted)), tuple(map(round, accepted)), ones)
