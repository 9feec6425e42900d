"""The lengths that a run observed, as a length trace: those of responses that nothing cut short.

Which of a run's samples may be used depends on its mode:

- `sync`, `predict`: all trained and filtered groups; nothing was cut. At the end of a run in `predict` prompts that are
  expected to be long wait without a draw; each takes the group of one that long rounds trained, as in `exact`.
- `exact`: each prompt that was settled was trained on one group, short with P(short) and long with P(long), so the
  settled prompts' groups are draws from the unconditioned law. At the run's end some prompts are deferred and not
  settled: known to be long, their group not drawn yet. Leaving them out would make the trace short, so each takes the
  group of a prompt that long rounds trained, in turns (a hot deck; its bias: owed prompts are taken to be like the
  settled long ones). Without a long round yet, `run_lengths` falls back on the next rule.
- `race`, `defer`, or fewer than `MIN_GROUPS` groups: trained samples are those that finished first, and long rounds
  show a hard choice of prompts, so neither may be taken as it is. Here only one number is measured, a factor on all
  lengths of the trace that the plan was solved from: the run's own rounds are simulated with that trace, and the
  factor is the one that gives the log lengths that the run trained. The selection is then the same on both sides.
  Its bias: the shape and the dependence inside a prompt stay the old trace's.

A change of the lengths within the run is not corrected for; the trace is the run's average policy.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...plans.yaml.errors import InputError
from ...profiles.length_trace import LengthRow, LengthTrace
from ...rounds.round_spec import UNBIASED
from ...traces.trace_events import Sample
from ..lengths.draws import Draws
from ..lengths.length_model import fit_lengths
from ..lengths.table_lengths import TableTrace
from ..simulate.whole_run import simulate_run
from .executed_run import ExecutedRun
from .refit import Priced

MIN_GROUPS = 64
"""Groups below which one factor is all that is read from a run."""

_FACTOR_STEPS = 3  # of the search for the factor; each takes the remaining ratio
_FACTOR_PRIOR = 0.5  # standard deviation of the log of the factor, before the run was seen
_FEWEST_STEPS = 64  # simulated, so that the simulation's noise is less than the run's
_PROMPTS = 2048


def run_lengths(run: ExecutedRun) -> LengthTrace:
    """The lengths of a `sync`, `predict` or `exact` run. Raises InputError if the run cannot tell them (see above)."""
    trace = _whole_groups(run)
    if trace is None:
        raise InputError(
            f"{len(run.steps)} steps of mode {run.plan.job.bias.mode} do not show the lengths that nothing cut short; "
            "give a length trace, or a run of mode sync, predict or exact with long rounds",
            str(run.home),
        )
    return trace


def refit_lengths(
    run: ExecutedRun, old: LengthTrace, priced: Priced, cap_tokens: int, dynamic_sampling: bool, seed: int
) -> tuple[LengthTrace, float]:
    """(the trace that the run supports, its mean length over the old one's).

    Args:
        old: the trace that the plan was solved from.
        priced: the run's plan at refitted costs; they decide which samples finish first.
    """
    whole = _whole_groups(run)
    if whole is not None:
        # A run's own cap is the job's, whether a sample reached it or not.
        whole = LengthTrace(whole.rows, cap_tokens)
        return whole, _mean_tokens(whole, cap_tokens) / _mean_tokens(old, cap_tokens)
    factor = _length_factor(run, old, priced, cap_tokens, dynamic_sampling, seed)
    return scaled(old, factor, cap_tokens), factor


def _mean_tokens(trace: LengthTrace, cap: int) -> float:
    groups = trace.by_prompt().values()
    return math.fsum(sum(min(r.tokens, cap) for r in rows) / len(rows) for rows in groups) / len(groups)


def _whole_groups(run: ExecutedRun) -> LengthTrace | None:
    mode = run.plan.job.bias.mode
    if mode not in UNBIASED:
        return None
    rows: list[LengthRow] = []
    long_groups: list[list[LengthRow]] = []
    settled: set[tuple[str, int]] = set()
    owed: set[tuple[str, int]] = set()
    for step in run.steps:
        draws: dict[int, list[LengthRow]] = {}
        for row in step.rows:
            name = (row.prompt, row.epoch)
            if row.fate in ("trained", "filtered"):
                draws.setdefault(row.draw, []).append(_row(row))
                settled.add(name)
                owed.discard(name)
            elif row.fate == "deferred":
                owed.add(name)
        for group in draws.values():
            rows += group
            if step.kind == "long":
                long_groups.append(group)
    if mode == "predict":
        # They wait undrawn, so the trace counts them and does not name them.
        last = max((epoch for _, epoch in settled), default=0)
        owed = {(f"owed.{number}", last) for number in range(run.steps[-1].deferred)}
    if len(settled) < MIN_GROUPS or (owed and not long_groups):
        return None
    for number, (prompt, epoch) in enumerate(sorted(owed)):
        donor = long_groups[number % len(long_groups)]
        rows += [replace(r, prompt=prompt, epoch=epoch) for r in donor]
    # Not the job's cap but None: a run that no sample of which was cut says nothing about lengths beyond it.
    return LengthTrace(rows)


def _row(row: Sample) -> LengthRow:
    return LengthRow(
        prompt=row.prompt,
        epoch=row.epoch,
        sample=row.sample,
        tokens=max(1, row.tokens),
        truncated=row.truncated,
        reward=row.reward,
        prompt_tokens=max(1, row.prompt_tokens),
    )


def scaled(trace: LengthTrace, factor: float, cap_tokens: int) -> LengthTrace:
    """All lengths times `factor`, cut by the cap; what the cap had cut stays cut. A table's lengths stay a table's, so
    that a plan keeps the caveats on the assumed spread and ICC."""
    if isinstance(trace, TableTrace):
        return trace.scaled(factor)

    def row(r: LengthRow) -> LengthRow:
        tokens = max(1, round(factor * r.tokens))
        cut = r.truncated or tokens > cap_tokens
        return replace(r, tokens=cap_tokens if cut else tokens, truncated=cut)

    return LengthTrace([row(r) for r in trace.rows], cap_tokens)


def _length_factor(
    run: ExecutedRun, old: LengthTrace, priced: Priced, cap_tokens: int, dynamic_sampling: bool, seed: int
) -> float:
    """The factor on `old` under which the run's plan would have trained the log lengths that it did train.

    Their mean, and not the log of the mean length, which a few long samples decide and caps hold back.
    """
    spec = run.plan.job.round_spec(cap_tokens, dynamic_sampling)
    measured = {kind: _trained_logs(run, kind) for kind in ("short", "long")}
    present = [kind for kind, groups in measured.items() if groups]
    if not present:
        return 1.0

    def simulated(factor: float) -> dict[str, float]:
        model = fit_lengths(scaled(old, factor, cap_tokens), cap_tokens, seed)
        draws = Draws(model, seed, max(spec.short_samples, 1))
        count = max(len(run.steps), _FEWEST_STEPS)
        prompts = epoch_prompts(run, _PROMPTS)
        result = simulate_run(spec, priced.short, priced.long, priced.reward, draws, count, prompts)
        steps = (*result.steps, *result.settling)
        return {
            kind: math.fsum(s.log_tokens for s in steps if s.kind == kind)
            / max(1, sum(s.samples for s in steps if s.kind == kind))
            for kind in present
        }

    # Groups are the units that vary (samples of a prompt are alike); kinds of round weigh by what they tell.
    means = {kind: math.fsum(groups) / len(groups) for kind, groups in measured.items() if groups}
    groups_of = {kind: len(measured[kind]) for kind in present}
    total = sum(groups_of.values())
    log_factor = 0.0
    for _ in range(_FACTOR_STEPS):
        replayed = simulated(math.exp(log_factor))
        log_factor += math.fsum(groups_of[k] * (means[k] - replayed[k]) for k in present) / total
    squares = math.fsum((v - means[k]) ** 2 for k in present for v in measured[k])
    error = math.sqrt(squares / max(1, total - len(present)) / total)
    return math.exp(log_factor * _FACTOR_PRIOR**2 / (_FACTOR_PRIOR**2 + error**2))


def epoch_prompts(run: ExecutedRun, default: int) -> int:
    """Prompts of the epochs that a run is simulated in.

    Only `predict` knows more from one epoch to the next, so only there they are as long as the run's own.
    """
    if run.plan.job.bias.mode != "predict":
        return default
    return max(run.plan.job.issue.prompts_per_step, len({row.prompt for step in run.steps for row in step.rows}))


def _trained_logs(run: ExecutedRun, kind: str) -> list[float]:
    """For each group that rounds of this kind trained, the mean of its log lengths."""
    groups: dict[tuple[int, int], list[float]] = {}
    for step in run.steps:
        for row in step.rows:
            if step.kind == kind and row.fate == "trained":
                groups.setdefault((step.step, row.draw), []).append(math.log(max(1, row.tokens)))
    return [math.fsum(logs) / len(logs) for logs in groups.values()]
