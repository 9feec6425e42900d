"""The site rules, rlplan.policy.yaml: a team's own limits on plans, which `rlplan check` reads, and which re-plans of
running groups and of running jobs are made without asking a person.

Every key is optional; a key that is not written sets no limit. Without `auto_apply` and `tune` nothing is made without
asking. For
a plan, the nearest such file counts: in the plan's folder or in a folder above it, up to the root of its repository.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from ...rounds.round_spec import Mode
from ..yaml.yaml_doc import Document
from .base import Name, NonNegative, Positive, Strict, cross_error
from .plan import Provenance

SITE_RULES_NAME = "rlplan.policy.yaml"
MISNAMED = "rlplan.policy.yml"
"""A wrong file name. Such a file is reported as an error and not ignored, since its author expects it to be read."""

Share = Annotated[float, Field(ge=0, le=1)]
Nodes = Annotated[int, Field(ge=0, le=1_000_000)]


class AutoApply(Strict):
    """Limits of the re-plans of running groups that are made without asking a person. All of them must hold, the other
    keys of the policy too, and every bound of the new plan; jobs that come or go are never applied so."""

    most_moves: Annotated[int, Field(ge=1, le=1_000_000)]
    """Most running jobs that one re-plan moves."""

    most_price_s: NonNegative
    """Most seconds that its moves may cost once, all its jobs together."""

    most_usd_per_hour_more: NonNegative = 0.0
    """Most USD per hour by which all nodes together may become dearer."""

    least_gain_usd_per_hour: Positive | None = None
    """Least USD per hour that a re-plan must save which no bound needs; null: only those that a bound needs are
    made."""

    least_hours_between: NonNegative = 1.0
    """Hours from one re-plan that was made so to the next."""


class TuneApply(Strict):
    """Whether `rlplan tune --apply` gives a running job the plan that it finds without asking a person."""

    apply: Literal["ask", "auto"] = "ask"
    """`ask`: a person says yes (`--yes`, or at the terminal); `auto`: within this policy's bounds nobody is asked."""

    at_least: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Least gain, a share of the seconds (or USD) of a trained sample, of a plan that is applied without asking."""


class SiteRules(Strict):
    """The document rlplan.policy.yaml."""

    model_config = ConfigDict(title="Policy")

    rlplan_policy: Literal[1]
    """Version of the format."""

    max_usd_per_hour: NonNegative | None = None
    """Most that a plan's nodes may cost per hour, all its groups together."""

    max_usd_per_1k_samples: NonNegative | None = None
    """Most that 1000 trained samples may cost. Plans of one job."""

    max_nodes: Annotated[dict[Name, Nodes], Field(default_factory=dict)]
    """By pool, most nodes that a plan may take. A pool that is not named is limited only by its own nodes."""

    max_bias: Share | None = None
    """Largest |1 - length ratio| that may be predicted, and largest bias budget. Plans of one job."""

    max_cut_share: Share | None = None
    """Largest share of the trained samples that the job's cap may cut; a plan that does not state it is refused. Plans
    of one job."""

    forbidden_modes: Annotated[tuple[Mode, ...], Field(strict=False)] = ()
    """Bias modes that no plan may have."""

    max_step_p95_s: Positive | None = None
    """Largest p95 of a step in seconds that may be predicted. Plans of one job."""

    require_slo: bool = False
    """Whether each job must declare slo.step_p95_s, and with `max_step_p95_s`, one that is no larger."""

    max_gap: Share | None = None
    """Largest gap to the solver's bound; a plan without a bound is refused."""

    max_error: NonNegative | None = None
    """Largest relative error of the predicted seconds. Plans of one job."""

    allowed_provenance: Annotated[tuple[Provenance, ...], Field(min_length=1, strict=False)] | None = None
    """Where a profile's costs may come from; null: anywhere."""

    refuse_assumed: bool = False
    """Whether a plan is refused that rests on response lengths or reward seconds that were not measured on its job."""

    max_profile_age_days: Positive | None = None
    """Days after which a profile must be measured anew; a profile without a date is refused."""

    min_headroom: Share | None = None
    """Share of each memory that a plan must leave free: KV cache, trainers, hosts."""

    max_slowdown: Annotated[float, Field(ge=1)] | None = None
    """Largest p95 of a job's slowdown in its group. Plans of groups."""

    min_slo_attained: Share | None = None
    """Least share of jobs whose bound on slowdown holds. Plans of groups; without it, each must hold."""

    allow_edited: bool = False
    """Whether decisions may be edited by hand after they were solved."""

    allow_other_versions: bool = False
    """Whether a plan may have been solved by another version of rlplan than the one that checks it."""

    require_sandbox: bool = False
    """Whether a job is refused whose `code` reward says `sandbox: optional`. Plans of one job."""

    require_job_files: bool = False
    """Whether a job's data and model must exist on the machine that checks the plan."""

    auto_apply: AutoApply | None = None
    """Which re-plans of running groups are made without asking a person; null: none."""

    tune: TuneApply | None = None
    """Whether plans that `rlplan tune --apply` finds are given to running jobs without asking; null: a person says
    yes."""

    @model_validator(mode="after")
    def _some_mode_is_left(self) -> SiteRules:
        if {"sync", "race", "defer", "exact", "predict"} <= set(self.forbidden_modes):
            raise cross_error("forbids every mode; leave one", "forbidden_modes")
        return self


@dataclass(frozen=True)
class SiteRulesFile:
    """Site rules with their file.

    Attributes:
        path: of the file, as it is shown.
        rules: the site rules.
        document: the parsed text, for the lines of its keys.
    """

    path: str
    rules: SiteRules
    document: Document

    def place(self, key: str) -> str:
        """Return `FILE:LINE` of a key."""
        return f"{self.path}:{self.document.line_of((key,))}"


def find_site_rules(plan_path: str | Path) -> Path | None:
    """Path of the site rules for the document at `plan_path`: in its folder, else in the nearest folder above, up to
    the root of the repository (the folder with .git) or of the file system; None if there are none."""
    folder = Path(os.path.abspath(plan_path)).parent  # noqa: PTH100 (links are the user's way to share a folder)
    for place in (folder, *folder.parents):
        # A broken link and a file with the wrong ending are returned too: reading them then reports the mistake.
        for name in (SITE_RULES_NAME, MISNAMED):
            if os.path.lexists(place / name) and not os.path.isdir(place / name):  # noqa: PTH112
                return place / name
        if os.path.exists(place / ".git"):  # noqa: PTH110
            return None
    return None


def load_site_rules(path: Path) -> SiteRulesFile:
    """Read site rules. Raises InputError."""
    from ..yaml.yaml_doc import parse
    from ..yaml.yaml_io import load, read_text

    return SiteRulesFile(str(path), load(path, SiteRules), parse(read_text(path), str(path)))
