"""The page of a plan of one job."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.digest import job_decisions
from ..facts.round_bars import round_bars
from ..phrases.caveats import assumed_errors, cut_text, drift_text, limit_text, wait_text
from ..phrases.numbers import bytes_text, count, digits, percent, ratio, seconds, times, usd
from ..phrases.pools_text import nodes_text
from ..phrases.sentences import sentence
from ..phrases.solver_status import proof_word, solver_status
from ..schema.length_evidence import MUCH_AT_CAP
from ..schema.plan import InputFile, Inputs, Plan
from ..schema.predicted import Predicted
from ..schema.predicted_limit import HardwareLimit
from . import decision_tables
from .charts import charts_plan
from .charts.charts_round import timeline
from .elements import Card, render


def page(plan: Plan, title: str, notes: Sequence[str]) -> str:
    """Return the HTML document."""
    job, origin = plan.job, plan.inputs
    subtitle = (
        f"Plan of job {job.name}: mode {job.bias.mode}, {count(job.issue.prompts_per_step, 'prompt')} × "
        f"{count(job.issue.samples_per_prompt, 'sample')} a step, on {nodes_text(plan)}"
    )
    edited = job_decisions(job) != plan.decisions_sha256
    input_files = [
        ("cluster", origin.cluster),
        ("job", origin.job),
        ("profile", origin.profile),
        ("lengths", InputFile(path=origin.lengths.name, sha256=origin.lengths.sha256)),
        *_rewards(origin),
    ]
    return render(
        "plan.html.j2",
        title,
        subtitle,
        banners=decision_tables.banners(notes, edited),
        cards=headline(plan),
        timeline=timeline(plan.predicted, round_bars(plan)),
        charts=[f(plan) for f in (charts_plan.phases, charts_plan.front, charts_plan.lengths, charts_plan.memory)],
        drift=sentence(drift_text(plan.predicted.drift)),
        rounds=decision_tables.settings(plan),
        reasons=decision_tables.reasons(plan),
        inputs=decision_tables.inputs(input_files, plan.decisions_sha256),
        solved=decision_tables.solved(plan.volatile, "changes in what the solver reads"),
    )


def _rewards(origin: Inputs) -> list[tuple[str, InputFile]]:
    """Return the table of reward seconds that ships with rlplan, if the plan was solved with one."""
    rewards = origin.rewards
    return [] if rewards is None else [("rewards", InputFile(path=rewards.library, sha256=rewards.sha256))]


def _limit(limit: HardwareLimit | None) -> list[Card]:
    """Return the card on the distance to the hardware's peak; none where that is not known."""
    return [] if limit is None else [Card("Of the hardware's peak", percent(limit.ratio), limit_text(limit))]


def _cut(predicted: Predicted) -> list[Card]:
    """Return the card on the trained samples that the job's cap cuts; none for an older plan."""
    if (cut := predicted.cut) is None:
        return []
    return [Card("Cut at the cap", percent(cut.share), cut_text(predicted), "warn" if cut.share >= MUCH_AT_CAP else "")]


def _wait(predicted: Predicted) -> list[Card]:
    """Return the card on how long prompts wait in the queue of long rounds; none without a queue."""
    wait = predicted.wait
    return [] if wait is None else [Card("Wait in the queue", digits(wait.mean_rounds), wait_text(predicted))]


def headline(plan: Plan) -> list[Card]:
    """Return the cards with the headline figures."""
    predicted, solver = plan.predicted, plan.solver
    plain_ms, here_ms = 1000 * predicted.baseline.seconds_per_sample, 1000 * predicted.seconds_per_sample
    name, tightest, _ = min(charts_plan.memory_bars(plan), key=lambda bar: bar[1].headroom)
    off = abs(1 - predicted.length_ratio)
    return [
        Card(
            "Mean step",
            seconds(predicted.step_s.mean),
            f"± {percent(predicted.error.total)} (costs {percent(predicted.error.costs)}, "
            f"lengths {percent(predicted.error.lengths)}, simulation {percent(predicted.error.sampling)}"
            + assumed_errors(predicted.error)
            + (f", longer than seen {percent(predicted.error.extrapolation)}" if predicted.error.extrapolation else "")
            + "); "
            f"p50 {seconds(predicted.step_s.p50)}, p95 {seconds(predicted.step_s.p95)}",
        ),
        Card(
            "Speed-up",
            times(predicted.speedup),
            f"{here_ms:,.1f} ms a trained sample; plain rounds take {plain_ms:,.1f} ms",
            "good" if predicted.speedup > 1.005 else "bad" if predicted.speedup < 0.995 else "",
        ),
        *_limit(predicted.limit),
        Card(
            "USD per hour",
            usd(predicted.usd_per_hour),
            f"{usd(predicted.usd_per_1k_samples)} USD per 1,000 samples, {count(predicted.nodes, 'node')}",
        ),
        Card(
            "Bias: length ratio",
            ratio(predicted.length_ratio),
            f"mode {plan.job.bias.mode}, budget {digits(plan.job.bias.budget)}; 1 is unbiased",
            "good" if off < 0.005 else "bad" if off > plan.job.bias.budget + 0.02 else "warn",
        ),
        *_cut(predicted),
        *_wait(predicted),
        Card(
            "Memory to spare",
            percent(tightest.headroom),
            f"tightest: {name}, {bytes_text(tightest.needed_bytes)} of {bytes_text(tightest.capacity_bytes)}",
            "bad" if tightest.headroom < 0 else "warn" if tightest.headroom < 0.05 else "",
        ),
        Card(
            "Proof",
            proof_word(solver),
            f"{solver_status(solver)}; objective {solver.objective.replace('_', ' ')}, {solver.method}, "
            f"{solver.name}; costs "
            f"{plan.inputs.profile.provenance}",
            "good" if solver.status == "optimal" else "warn",
        ),
    ]
