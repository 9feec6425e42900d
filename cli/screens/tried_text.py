"""What `rlplan rewards try` and `audit` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...plans.phrases.numbers import count, seconds

if TYPE_CHECKING:
    from ...executor.rewards.audit import Audited
    from ...executor.rewards.local_scoring import Tried
    from ...plans.files.prompt_rows import Prompt

MOST_LISTED = 20
"""Rows that fail an audit that are listed; the others are counted."""
_SHOWN = 2000
_INDENT = "    "


def tried_text(row: Prompt, response: str, source: str, result: Tried, left_out: Sequence[str]) -> str:
    """A response, each part's steps and value, and the reward. `source`: where the response is from."""
    lines = [f"row {row.id} (line {row.line}); response: {source}, {count(len(response), 'character')}"]
    lines += _block(response)
    for part, scored in result.parts:
        named = part.label if part.label == part.kind else f"{part.label} ({part.kind})"
        ended = _ended(scored.outcome, scored.reward, scored.refused)
        lines.append(f"{named}: {ended} in {seconds(scored.seconds)}")
        for name, text in ((name, text.strip("\n")) for name, text in scored.steps):
            lines += [f"  {name}:", *_block(text)] if "\n" in text else [f"  {name}: {text}"]
        lines += [f"  why: {scored.detail}"] if scored.detail else []
    if result.reward is None:
        lines.append("no reward: the row is refused" if result.refused else "no reward: scoring failed")
    elif len(result.parts) > 1 or result.parts[0][0].weight != 1.0:
        terms = " + ".join(f"{part.weight:g} x {scored.reward:g}" for part, scored in result.parts)
        lines.append(f"reward {result.reward:g} = {terms}")
    else:
        lines.append(f"reward {result.reward:g}")
    lines += [f"without {label}, which needs a model or its tokens" for label in left_out]
    return "\n".join(lines)


def _ended(outcome: str, reward: float, refused: bool) -> str:
    if refused or outcome == "infra_failed":
        return "refused" if refused else "not scored"
    return f"{reward:g}" + ("" if outcome == "ok" else f" ({outcome.replace('_', ' ')})")


def _block(text: str) -> list[str]:
    cut = text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}\n…\n{text[-_SHOWN // 2 :]}"
    return [f"{_INDENT}{line}".rstrip() for line in cut.splitlines()]


def audit_text(found: Audited) -> str:
    """The counts of an audit, and the rows that fail."""
    lines = [found.audit.text]
    for failure in found.failed[:MOST_LISTED]:
        gets = "is refused" if failure.reward is None else f"{failure.probe} gets {failure.reward:g}"
        lines.append(f"  line {failure.line}, row {failure.id or '?'}: {gets}: {failure.why}")
    if (left := len(found.failed) - MOST_LISTED) > 0:
        probes = Counter(failure.probe for failure in found.failed)
        lines.append(f"  {left} more ({', '.join(f'{number} {probe}' for probe, number in sorted(probes.items()))} in "
                     "all); --json lists them")  # fmt: skip
    lines += [f"note: {text}" for text in found.left_out]
    lines.append("passed" if found.audit.passed else "failed")
    return "\n".join(lines)
