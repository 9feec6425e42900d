"""A plan for one of the frameworks; of a plan of groups, the placement of each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...plans.facts.trainer_setup import Framework
from ...plans.yaml.yaml_io import error_at
from .draft import ExportDraft, ExportSource, FrameworkExport, Price
from .export_others import export_openrlhf, export_skyrl
from .export_slime import export_slime, export_vime
from .export_trl import export_trl
from .export_verl import export_verl

EXPORTS: Mapping[Framework, Callable[[ExportDraft], FrameworkExport]] = {
    "trl": export_trl, "verl": export_verl, "slime": export_slime, "vime": export_vime, "skyrl": export_skyrl,
    "openrlhf": export_openrlhf,
}  # fmt: skip


def export_plan(
    path: str | Path, framework: Framework, out: str | Path, *, plugin: bool = True, price: Price | None = None
) -> FrameworkExport:
    """The files of a plan of one job, to be written into `out`; the job and the cluster lie where the plan says.

    `plugin`: rounds run by rlplan's plug-in where the framework has one; `price`: simulates what an approximation
    costs. Raises InputError.
    """
    source = ExportSource.read(Path(path), Path(out))
    if source.job.data.sets:
        raise error_at(source.job_path, ("data", "sets"), "data.sets: an export takes one file; write the rows of all "
                       "sets into one, with ids of their own, and name it in data.path")  # fmt: skip
    if part := next((each for each in source.job.reward.parts if each.rows), None):
        raise error_at(source.job_path, (*source.job.reward.key_of(part), "rows"),
                       "reward: rows: the reward.py of an export scores all rows alike; remove the key, and have one "
                       "function look at a row")  # fmt: skip
    draft = ExportDraft(framework, source=source, plugin=plugin, price=price)
    draft.rows()
    return EXPORTS[framework](draft)
