"""plan.yaml: the planner writes it, the executor runs it; nothing else passes from planner to executor.

A `Plan` object is consistent in itself: its rounds are those that its bias mode needs. `check.check_plan` checks
whether it fits the cluster, the job and the files that it was solved from.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ...rounds.round_spec import Mode
from .base import Count, Name, NonNegative, Strict, cross_error, is_false, is_none
from .planned_job import PlannedJob
from .predicted import Predicted
from .reward_spec import RewardAudit


def _relative(value: str) -> str:
    if not value or PurePosixPath(value).is_absolute() or "\\" in value:
        raise cross_error(
            "must be a path with '/' relative to the plan's folder, so that the plan reads the same anywhere"
        )
    return value


RelativePath = Annotated[str, AfterValidator(_relative)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class InputFile(Strict):
    """A file that the plan was solved from."""

    path: RelativePath
    """Path relative to the plan's folder."""

    sha256: Sha256
    """SHA-256 of the file's bytes, 64 lower-case hexadecimal digits."""


Provenance = Literal["measured", "derived", "estimated"]


class ProfileFile(InputFile):
    """The profile that the plan was solved from."""

    provenance: Provenance
    """Whether its costs were measured on hardware, derived from other measurements, or estimated."""

    reward_audit: Annotated[RewardAudit | None, Field(exclude_if=is_none)] = None
    """Whether the reward paid the data's own answers and no wrong ones when the profile was measured; null: not
    asked."""


class LengthsInput(Strict):
    """The response lengths that the plan was solved from: a file, a table that ships, or stated quantiles."""

    path: Annotated[RelativePath | None, Field(exclude_if=is_none)] = None
    """Length trace, path relative to the plan's folder; null: no file."""

    library: Annotated[Name | None, Field(exclude_if=is_none)] = None
    """Name of a table of lengths that ships (`rlplan lengths list`); null: none."""

    assumed: Annotated[str | None, Field(min_length=1, max_length=400, exclude_if=is_none)] = None
    """Quantiles that were not measured, `p50=800,p95=4000,max=16384,icc=0.5`; null: none."""

    scale: Annotated[float | None, Field(gt=0, exclude_if=is_none)] = None
    """Factor on all lengths of the table or the quantiles, as a run measured it; null: none was measured."""

    sha256: Sha256
    """SHA-256 of the file's bytes, of the table's text, or of the quantiles' text; with a scale, of both."""

    @property
    def file(self) -> InputFile | None:
        """The file; None without one."""
        return None if self.path is None else InputFile(path=self.path, sha256=self.sha256)

    @property
    def name(self) -> str:
        """The file's path, or the argument of `--lengths`."""
        source = self.path or self.library or self.assumed or ""
        return source if self.scale is None else f"{source},scale={self.scale:g}"

    @model_validator(mode="after")
    def _is_one_of_them(self) -> LengthsInput:
        given = [key for key in ("path", "library", "assumed") if getattr(self, key) is not None]
        if len(given) != 1:
            fault = f"it has {' and '.join(given)}" if given else "it has none of them"
            raise cross_error(f"names lengths by exactly one of path, library and assumed; {fault}")
        if self.scale is not None and self.path is not None:
            raise cross_error("has a scale beside a path; a file's lengths are taken as they are", "scale")
        return self


class LibraryInput(Strict):
    """Figures that ship with rlplan and that the plan was solved from."""

    library: Name
    """Name of the shipped table."""

    sha256: Sha256
    """SHA-256 of the table's text."""


Digest64 = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""The first 64 bits of a SHA-256: enough to detect an edit, and short."""


class SolverRead(Strict):
    """Digests of the values that the solver reads of three files."""

    cluster: Digest64
    """Digest for cluster.yaml."""

    job: Digest64
    """Digest for job.yaml."""

    profile: Digest64
    """Digest for profile.yaml."""


class Inputs(Strict):
    """The files that the plan was solved from; when what the solver reads of one changes, the plan is stale."""

    cluster: InputFile
    """cluster.yaml."""

    job: InputFile
    """job.yaml."""

    profile: ProfileFile
    """profile.yaml."""

    lengths: LengthsInput
    """Response lengths."""

    rewards: Annotated[LibraryInput | None, Field(exclude_if=is_none)] = None
    """Reward seconds that ship by kind of reward, where the profile was not measured; null: the profile's own."""

    solver_read: Annotated[SolverRead | None, Field(exclude_if=is_none)] = None
    """Digests of what the solver read of the files, so that other changes (a learning rate, a comment) do not make the
    plan stale; null: every change of a file does."""

    def of_same_job(self, other: Inputs) -> bool:
        """Whether both plans were solved from the same job, or from jobs that do not differ for the solver."""
        read = [inputs.solver_read and inputs.solver_read.job for inputs in (self, other)]
        return self.job.sha256 == other.job.sha256 or (read[0] is not None and read[0] == read[1])


Method = Literal["integer program", "enumeration"]


class Solver(Strict):
    """How the plan was found."""

    name: Annotated[str, Field(min_length=1)]
    """Solver and version."""

    method: Method = "integer program"
    """`integer program`: one program chose among all schedules; `enumeration`: schedules were listed where a limit cut
    the program's search, or a program was solved for each of several places of a judge or pools."""

    status: Literal["optimal", "feasible"]
    """`optimal`: no schedule is better by more than `gap`; `feasible`: a limit ended the search."""

    gap: NonNegative
    """Relative distance between `reached` and `bound`."""

    bound: NonNegative
    """Proven lower bound of the objective, in its unit."""

    reached: NonNegative
    """Best objective that the solver reached, on the rounds that the choice was made on. These rounds flatter it;
    `predicted` is of other rounds."""

    given_up: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Share by which the plan costs more than `reached` on these rounds, for being simpler to run; no more than the
    error of the costs (`job.why.ties`). Null: the plan is the proven best."""

    objective: Literal["seconds_per_sample", "usd_per_sample"]
    """The objective that was minimised."""

    within_s: Annotated[float | None, Field(gt=0, exclude_if=is_none)] = None
    """Most seconds of the mean step that the objective `usd-within` allowed; null: no bound."""

    forced_mode: Annotated[Mode | None, Field(exclude_if=is_none)] = None
    """The mode that was forced, which a re-solve of this plan keeps; null: the solver was free to choose."""

    forced_budget: Annotated[float | None, Field(ge=0, lt=1, exclude_if=is_none)] = None
    """The bias budget that was given with the forced mode, which a re-solve keeps; null: none was, so no plan was
    refused for its bias."""

    for_any: Annotated[bool, Field(exclude_if=is_false)] = False
    """Layouts and levers that `rlplan execute` cannot run were considered, too (`--for any`), as they are again when
    this plan is tuned or refreshed; false: only what it can run."""

    candidates: Count
    """Number of simulated schedules that the choice was made from."""

    @property
    def aim(self) -> str:
        """The objective as `--objective` has it."""
        return self.objective.split("_")[0] if self.within_s is None else f"usd-within {self.within_s:g}"

    refreshed: Annotated[bool, Field(exclude_if=is_false)] = False
    """The decisions were edited by hand after they were solved, and predicted anew by `rlplan refresh`; `gap` is then
    how far they are from what the solver proved of its own schedules."""


class Volatile(Strict):
    """Facts about the solve itself that differ from run to run; no digest covers them."""

    solved_at: str
    """When the plan was solved, ISO 8601 in UTC."""

    solve_s: NonNegative
    """Seconds that the solve took."""

    rlplan: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+\S*$")]
    """Version of rlplan that solved the plan."""


class Plan(Strict):
    """The document plan.yaml."""

    rlplan: Literal[1]
    """Version of the format."""

    inputs: Inputs
    """The files that the plan was solved from."""

    solver: Solver
    """How the plan was found."""

    decisions_sha256: Sha256
    """Digest of the decisions as they were solved. Once somebody edits a decision, the digest no longer fits, and the
    predictions are of other decisions."""

    job: PlannedJob
    """The decisions."""

    predicted: Predicted
    """What the simulator expects of the decisions."""

    predicted_sha256: Annotated[Sha256 | None, Field(exclude_if=is_none)] = None
    """Digest of `predicted` as it was solved, so that an edited figure is found. Null: an older plan that has none;
    solve it again."""

    volatile: Volatile
    """Facts about the solve itself."""

    @model_validator(mode="after")
    def _predictions_cover_the_rounds(self) -> Plan:
        if (self.job.rounds.long is None) != (self.predicted.rounds.long is None):
            raise cross_error(
                "predicted.rounds.long and job.rounds.long must both be null or both be given", "predicted.rounds.long"
            )
        return self

    def __repr__(self) -> str:
        figures = f"{self.predicted.step_s.mean:.4g} s a step, {self.predicted.speedup:.2f}x plain rounds"
        return f"<Plan of {self.job.name}: {self.job.bias.mode}, {figures}>"

    __str__ = __repr__


def load_plan(path: str | Path) -> Plan:
    """Read plan.yaml. Raises InputError. `check_plan` checks its digests and its fit to the cluster."""
    from ..yaml.yaml_io import load

    return load(path, Plan)
