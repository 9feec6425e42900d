"""What `rlplan profile` says of a profile that it has measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plans.phrases.numbers import bytes_text, digits, fixed, per_second, percent, seconds, times

if TYPE_CHECKING:
    from ...profiles.draft_schema import ProfiledDrafts
    from ...profiles.profile_schema import Profile


def profile_text(profile: Profile, summary: dict[str, Any], out: Path, lengths_path: Path) -> str:
    """The profile in lines for the terminal; `summary`: as `--json` prints it."""
    from ...plans.facts.plan_text import update_text

    lines = [f"measured in {seconds(summary['measuring_s'])} -> {out}, {lengths_path.name}", ""]
    lines.append("decode step = a + b * sequences + c * KV tokens")
    for r, row in zip(profile.rollout, summary["decode"], strict=True):
        lines.append(
            f"  {r.engines} x tp {r.tp}: a {digits(1e3 * r.step_s)} ms, b {digits(1e6 * r.step_s_per_sequence)} us, "
            f"c {digits(1e9 * r.step_s_per_kv_token)} ns, held-out error {percent(r.error)}; weight transfer "
            f"{seconds(r.sync.p50)}"
            + (f", sleep {seconds(r.sleep_s)}, wake {seconds(r.wake_s)}" if r.sleep_s and r.wake_s else "")
            + (
                ""
                if row["of_bandwidth"] is None
                else f"; decoding reads at {percent(row['of_bandwidth'])} of the bandwidth"
            )
        )
    for t, row in zip(profile.train, summary["train"], strict=True):
        lines.append(
            f"train by {update_text(t.layout)}: {seconds(t.step_s)} + {seconds(1e3 * t.step_s_per_token)} per "
            f"1k tokens, held-out error {percent(t.error)}"
            + (f", a rank's peak {bytes_text(t.peak_bytes)}" if t.peak_bytes else "")
            + ("" if row["mfu"] is None else f", MFU {percent(row['mfu'])}")
        )
    lines.append(_peaks(profile, summary))
    if profile.judge is not None:
        j = profile.judge
        lines.append(
            f"judge: {seconds(j.per_sample_s)} + {seconds(1e3 * j.per_token_s)} per 1k tokens a sample, {j.at_once} at "
            f"once; beside an engine it takes {times(j.beside_factor)} as long, and decoding {times(j.rollout_factor)}"
            + "".join(
                f"; with {percent(s.share)} of the cores it takes {times(s.beside_factor)}, decoding "
                f"{times(s.rollout_factor)}"
                for s in j.shares
            )
        )
    if profile.drafts is not None:
        lines.append(_drafts(profile.drafts))
    for c in profile.checks:
        lines.append(
            f"whole rounds, {c.engines} x tp {c.tp}: {c.rounds} run, {seconds(c.overhead_s)} + "
            f"{seconds(c.overhead_s_per_sample)} a sample + {times(c.factor, 3)} the phase costs, "
            f"held-out error {percent(c.error)}"
        )
    lengths = summary["lengths"]
    lines.append(
        f"lengths: p50 {lengths['p50']:.0f}, p95 {lengths['p95']:.0f}, max {lengths['max']}, at the cap "
        f"{percent(lengths['at_cap'])}, ICC {fixed(lengths['icc'], '.2f')}, mean reward "
        f"{fixed(lengths['reward'], '.3f')}"
    )
    if (audit := profile.reward_audit) is not None:
        failed = "" if audit.passed else "; rlplan rewards audit JOB names the rows that fail"
        lines.append(f"reward: audited {audit.text}{failed}")
    lines += [f"left out: {text}" for text in profile.outliers]
    lines += [summary["left_out"]] if summary["left_out"] else []
    lines += [f"suspicious: {text}" for text in summary["suspicious"]]
    return "\n".join(lines)


def _peaks(profile: Profile, summary: dict[str, Any]) -> str:
    """What MFU and bandwidth are shares of."""
    if summary["peak_flops"] is None:
        return f"no data sheet of {profile.machine.accelerator}: how far from its peak this is, is not known"
    of = "a core, measured" if profile.machine.kind == "cpu" else f"{profile.machine.accelerator}, by its data sheet"
    return f"peak of {of}: {per_second(summary['peak_flops'], 'FLOP')}, {per_second(summary['peak_bytes_per_s'], 'B')}"


def _drafts(drafts: ProfiledDrafts) -> str:
    """Tokens that drafts give a sample that decodes alone, and one in the largest batch that was measured."""
    largest = drafts.by_batch[-1].sequences if drafts.by_batch else 1

    def tokens(first_epoch: bool) -> str:
        law = drafts.law(first_epoch)
        one, many = (law.emitted(drafts.most_tokens, batch) for batch in (1, largest))
        return f"{one:.2f}" + (f" to {many:.2f}" if largest > 1 else "")

    return (
        f"drafts of up to {drafts.most_tokens} tokens: {tokens(True)} tokens a sample and step at first, "
        f"{tokens(False)} with earlier answers ({'alone' if largest == 1 else f'alone to {largest} at once'}); a step "
        f"takes {digits(1e3 * drafts.step_s)} ms + {digits(1e6 * drafts.step_s_per_sequence)} us a sequence more"
    )
