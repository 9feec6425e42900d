"""An old plan's decisions priced with a new plan's inputs: what the inputs changed, and what the decisions did.

A plan that was tuned, or solved from another profile or trace, predicts from other inputs than the plan before it; a
difference of the two predictions says nothing of the decisions. So both plans' decisions are simulated with the new
inputs, on the same prompts and draws, as `rlplan tune` compares them (plan_gain.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from ..plans.check.plan_fit import misfits
from ..plans.check.solved_rules import has_edited_decisions
from ..plans.diff.difference_error import same_basis
from ..plans.diff.input_diff import InputFiles, stale_inputs
from ..plans.diff.job_diff import Repriced, decided
from ..plans.schema.plan import Plan
from ..plans.yaml.errors import Infeasible, InputError
from .lengths.length_model import fit_lengths
from .plan_gain import price_ratio, seconds_ratio
from .refresh import error_with
from .what_if import load_documents


def reprice(old: Plan, new: Plan, new_path: Path, began: Callable[[], None] = lambda: None) -> Repriced | str | None:
    """What the decisions of `old` cost with the inputs of `new`, whose file is at `new_path`.

    None if there is nothing to price again: inputs or decisions are the same, or a plan was edited by hand. A text if
    it cannot be: why not. `began` is called before anything is simulated, which may take half a minute.
    """
    if same_basis(old, new) or decided(old) == decided(new) or has_edited_decisions(old) or has_edited_decisions(new):
        return None
    if stale := stale_inputs(new, InputFiles(new_path.parent)):
        names = f"{', '.join(stale)} {'is' if len(stale) == 1 else 'are'}"
        return (
            f"the new plan's {names} not at hand as it was solved; put the old plan beside the new inputs, rlplan "
            "refresh it, and diff that"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whoever solved the plan was warned
        try:
            return _priced(old, new_path, began)
        except (InputError, Infeasible) as error:
            text = error.message if isinstance(error, InputError) else str(error)
            return f"the old decisions have no price with the new inputs: {text}"


def _priced(old: Plan, new_path: Path, began: Callable[[], None]) -> Repriced:
    documents = load_documents(new_path)
    plan, profile, job = documents.plan, documents.profile, documents.job
    fault = next(
        (fault for fault in misfits(old, documents.cluster, job, documents.model) if fault.rule != "loss-divisor"), None
    )
    if fault is not None:
        raise InputError(fault.message)
    try:
        model = fit_lengths(documents.trace, job.rollout.max_response_tokens)
    except ValueError as error:
        raise InputError(str(error)) from None
    began()
    ratio, noise = seconds_ratio(plan.job, old.job, documents, profile, model, 0)
    price = price_ratio(plan.job, old.job, documents, profile)
    return Repriced(
        seconds_per_sample=plan.predicted.seconds_per_sample / ratio,
        usd_per_1k_samples=plan.predicted.usd_per_1k_samples / ratio / price,
        error=error_with(old, documents).model_copy(update={"sampling": noise / ratio}),
    )
