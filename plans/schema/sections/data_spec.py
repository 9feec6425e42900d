"""The job's `data` section: where its prompts are, or how many there will be."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..base import Count, Strict, cross_error, is_none


class DataSpec(Strict):
    """The prompts: a file of them, or, while a job is only planned, how many there will be."""

    path: Annotated[str | None, Field(min_length=1, exclude_if=is_none)] = None
    """File of rows, relative to job.yaml: JSON Lines, a JSON array or Parquet, plain or gzipped; each row has `id`,
    `prompt` (text or chat messages) and `answer`."""

    prompts: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """How many prompts there are; enough to plan while the file is not here, but not to measure or to train."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the order in which prompts are drawn in each epoch."""

    @model_validator(mode="after")
    def _prompts_can_be_counted(self) -> DataSpec:
        if self.path is None and self.prompts is None:
            raise cross_error(
                "names no prompts; add path, a JSONL file, or prompts, how many there will be", rule="missing-key"
            )
        return self
