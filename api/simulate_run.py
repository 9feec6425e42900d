"""`simulate`: a run of a job's plan, as it is or with other values; `rlplan simulate PLAN` calls it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ..planner.check.check_options import DataReader
from ..planner.check.checker import Checker
from ..planner.costs.job_pools import pools_of_plan
from ..planner.costs.memory_table import JobMemory
from ..planner.costs.round_costs import nodes_of
from ..planner.simulate.run_summary import BusyMeter, summarize
from ..planner.simulate.run_timeline import Timeline
from ..planner.simulate.whole_run import simulate_plan
from ..planner.what_if import Documents, as_simulated, change, load_documents
from ..plans.check.finding import Finding
from ..plans.check.rules import RULES
from ..plans.phrases.numbers import count, digits, seconds
from ..plans.schema.base import MOST_SIMULATED, MOST_STEPS
from ..plans.schema.plan import Plan
from ..plans.yaml.errors import InputError
from ..plans.yaml.yaml_io import atomic_write
from ..profiles.length_trace import LengthTrace
from ..profiles.profile_schema import Profile
from .given_documents import MOST_SEED, File, lengths_in_place, must_be_within, path_of
from .input_paths import check_target, need, plan_inputs
from .job_timeline import TIMELINE_STEPS, compact, epoch_prompts


@dataclass(frozen=True, repr=False)
class Simulated:
    """A simulated run.

    Attributes:
        figures: `all`, `short` and `long` steps, seconds and USD per sample, the plan's own `predicted`; keys as in
            `rlplan simulate --json`.
        findings: of `rlplan check` in the plan as it is simulated; with one such as too little memory the figures are
            those of an impossible run.
        notes: what followed from `set`, and what to know of the mode, a line each.
    """

    figures: Mapping[str, Any]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no findings but warnings."""
        return all(finding.warning for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """What `rlplan simulate --json` prints."""
        return {**self.figures, "findings": [finding.data() for finding in self.findings]}

    def __repr__(self) -> str:
        figures, every = self.figures, self.figures["all"]
        return (
            f"<Simulated {figures['mode']}: {count(every['steps'], 'step')} of {seconds(every['step_s']['mean'])} "
            f"(plan: {seconds(figures['predicted']['step_s']['mean'])}), "
            f"{digits(1000 * figures['seconds_per_sample'])} ms per trained sample, "
            f"{count(len(self.findings), 'finding')}>"
        )


def simulate(
    plan: File | Plan,
    *,
    profile: File | Profile | None = None,
    trace: File | LengthTrace | None = None,
    lengths: str | None = None,
    set: str | Sequence[str] | Mapping[str, Any] = (),
    steps: int = 200,
    prompts: int | None = None,
    seed: int = 0,
    drift: float = 0.0,
    switch_s: float = 0.0,
    timeline: File | None = None,
    force: bool = False,
) -> Simulated:
    """Simulate a run of a job's plan as it is written, or as it would be if some values were others. Nothing is solved.

    Prints nothing. A plan whose inputs have changed is simulated as they are now, with a Python warning.

    Args:
        plan: plan.yaml or a Plan.
        profile, trace: in place of the plan's; `trace` may be the folder of a run.
        lengths: in place of a trace, the name of a table that ships, or quantiles.
        set: values of plan, job, cluster or profile by dotted path: a mapping, or texts `path=value` as of `--set`.
        steps: to simulate.
        prompts: of an epoch; default: the job's data, else 4096.
        seed: of the simulation.
        drift: growth of log lengths per step.
        switch_s: seconds to change between layouts.
        timeline: write the first steps here as Chrome trace JSON; `force` overwrites a file that rlplan did not write.

    Raises InputError.
    """
    must_be_within("steps", steps, 1, MOST_STEPS, whole=True)
    must_be_within("prompts", prompts, 1, 10**7, whole=True)
    must_be_within("seed", seed, 0, MOST_SEED, whole=True)
    must_be_within("drift", drift, -1, 1)
    must_be_within("switch_s", switch_s, 0, 1e6)
    plan_path, profile_path = path_of(plan), None if profile is None else path_of(profile)
    target = None if timeline is None else Path(timeline)
    if target is not None:
        others = [profile_path, None if trace is None else path_of(trace)]
        read = (*plan_inputs(plan_path), *(path for path in others if path))
        check_target(target, *read, kind="timeline", force=force)
    if profile_path is not None:
        need(profile_path, "rlplan profile writes one; without --profile the plan's own is taken")
    response_lengths = lengths_in_place(trace, lengths)
    assignments = _assignments(set)
    documents, notes = change(load_documents(plan_path, profile_path, response_lengths), assignments)
    plan, job = documents.plan, documents.job
    if plan.job.bias.mode == "predict":
        notes.append("simulated from an epoch on that has a history, as the plan predicts; a run's first one is plain")
    pools = pools_of_plan(plan.job, documents.cluster)
    assert pools is not None, "the plan fits the cluster"
    nodes = nodes_of(plan.job, JobMemory(documents.profile, pools, job.model.dtype))
    per_step = plan.job.issue.prompts_per_step
    if prompts is not None and prompts < per_step:
        raise InputError(f"--prompts {prompts}: an epoch is at least one step of {per_step} prompts")
    epoch_size = prompts or epoch_prompts(documents, plan_path)
    _must_end(plan, steps)
    drawn = None if target is None else Timeline(TIMELINE_STEPS)
    meter = BusyMeter(drawn)
    run = simulate_plan(
        plan,
        job,
        documents.profile,
        documents.trace,
        steps=steps,
        prompts=epoch_size,
        seed=seed,
        drift_per_step=drift,
        switch_s=switch_s,
        watch=meter,
        cluster=documents.cluster,
    )
    figures = {"plan": str(plan_path), "set": assignments, **summarize(run, meter, plan, pools, nodes)}
    changed = assignments or profile_path or response_lengths
    findings = simulated_findings(plan_path, documents, as_simulated(plan, figures) if changed else None)
    if drawn is not None and target is not None:
        atomic_write(target, compact(drawn.document()))
        figures["timeline"] = str(target)
    return Simulated(figures, tuple(findings), tuple(notes))


def _assignments(given: str | Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Assignments as texts `path=value`."""
    if isinstance(given, Mapping):
        return [f"{path}={json.dumps(value, default=_plain)}" for path, value in given.items()]
    return [given] if isinstance(given, str) else list(given or ())


def _plain(value: object) -> int | float | str:
    """A number or a path as JSON has it."""
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, os.PathLike):
        return str(value)
    raise InputError(f"set: {value!r} is no number, text, list or mapping")


def _must_end(plan: Plan, steps: int) -> None:
    """Raise InputError for a run of more than MOST_SIMULATED samples: simulating it would take too long."""
    issue = plan.job.rounds.short.issue
    samples = issue.prompts * issue.samples
    if steps * samples > MOST_SIMULATED:
        raise InputError(
            f"--steps {steps}: with {samples} samples a step these are {steps * samples:,} samples, and at most "
            f"{MOST_SIMULATED:,} are simulated; write at most {max(1, MOST_SIMULATED // samples)} steps"
        )


_WARNED_OF = ("input-changed", "input-missing")  # load_documents warns of these


def simulated_findings(plan: Path, documents: Documents, changed: Plan | None) -> list[Finding]:
    """Findings of `rlplan check` in a plan as it is simulated; those about its input files are warned of.

    `changed`: the plan with figures of the simulation, where the documents are not what their files hold; else None.
    Then these decisions and figures are checked; findings on how the plan's predictions agree with its files stay.
    """
    checker = Checker(datetime.now(UTC), data=DataReader(judged="fast"))
    report, *policies = checker.check([str(plan)])
    stay = [finding for finding in report.findings if RULES[finding.rule].family != "inputs"]
    warned = [finding for policy in policies for finding in policy.findings]
    if changed is None:
        warned += [f for f in report.findings if RULES[f.rule].family == "inputs" and f.rule not in _WARNED_OF]
    else:
        stay = [f for f in stay if f.rule == "policy-job-files" or RULES[f.rule].family == "predictions"]
        stay = [f for f in stay if not f.warning]
        stay += checker.changed_findings(str(plan), changed, documents.job, documents.cluster, documents.profile)
    for finding in warned:
        warnings.warn(finding.noted, stacklevel=3)
    return stay
