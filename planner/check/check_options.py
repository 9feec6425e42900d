"""Options of a check, and a function that opens the documents that a checked file names."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ...plans.check.any_document import read_document
from ...plans.check.finding import Fault
from ...plans.files.prompt_rows import Judged, Progress, RowFault, Rows, read_rows
from ...plans.schema.reward_spec import RewardSpec
from ...plans.schema.site_rules import SiteRulesFile
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import Loc
from ...plans.yaml.yaml_io import document_name
from ...profiles.document_models import ALL_MODELS

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class CheckedData:
    """What was found in a data file.

    Attributes:
        ids: of the good rows.
        faults: of the other rows.
        unjudged: good rows whose answer could not be read here, where math-verify is not installed.
    """

    ids: tuple[str, ...]
    faults: tuple[RowFault, ...]
    unjudged: int


@dataclass
class DataReader:
    """Reads the data files that the documents of a check name, each once; `judged`: which answers, as `read_rows`."""

    progress: Progress = lambda *_: None
    judged: Judged = "all"
    _found: dict[tuple[Rows, tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]], CheckedData | InputError] = (
        field(default_factory=dict)
    )

    def read(self, path: Rows, reward: RewardSpec) -> CheckedData:
        """The data file at `path`, read as the job's reward will. Raises InputError as `read_rows` does."""
        key = (path, tuple((part.kind, part.packages, part.rows) for part in reward.parts))
        if key not in self._found:
            try:
                rows, faults = read_rows(path, reward, self.judged, self.progress)
                found = CheckedData(tuple(row.id for row in rows), tuple(faults), sum(not row.judged for row in rows))
                self._found[key] = found
            except InputError as error:
                self._found[key] = error
        known = self._found[key]
        if isinstance(known, InputError):
            raise known
        return known


@dataclass(frozen=True)
class CheckOptions:
    """Site rules and ages that a file is checked against, beside its own inputs.

    Attributes:
        now: the time that ages are counted to.
        site_rules: of the file's folder, or those given; None without any.
        age_option: days, from the command line; goes before the site rules'.
        data: reads data files.
    """

    now: datetime
    site_rules: SiteRulesFile | None
    age_option: float | None
    data: DataReader = field(default_factory=DataReader)

    @property
    def max_age_days(self) -> float | None:
        """The most days that a profile may be old; None: any number."""
        if self.age_option is not None:
            return self.age_option
        return self.site_rules.rules.max_profile_age_days if self.site_rules else None

    @property
    def age_source(self) -> str:
        """Where `max_age_days` comes from."""
        if self.age_option is not None or self.site_rules is None:
            return "--max-age-days"
        return f"{self.site_rules.place('max_profile_age_days')} (max_profile_age_days)"


def opened(path: Path, named: str, model: type[M], location: Loc, faults: list[Fault]) -> M | None:
    """The document at `path`, which the checked file names at `location` as `named`.

    None if there is no such file (the rule on digests finds that), or if it is no document of `model`, which is added
    to `faults`.
    """
    if not os.path.isfile(path):  # noqa: PTH113 (pathlib raises for what can be no path)
        return None
    read = read_document(str(path), ALL_MODELS)
    if isinstance(read.value, model):
        return read.value
    wanted = document_name(model)
    if read.value is not None and read.mark is not None:
        why = f"is of kind {document_name(ALL_MODELS[read.mark])}, not {wanted}"
    else:
        first = read.findings[0]
        why = f"is no {wanted} any more: {f'line {first.line}: ' if first.line else ''}[{first.rule}] {first.text}"
    faults.append(Fault("input-unreadable", location, f"'{named}' {why}"))
    return None
