"""What an audit of a job's reward on its own data found: `rlplan profile` makes it, a plan carries it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..base import Strict, cross_error

Rows = Annotated[int, Field(ge=0, le=10**12)]


class RewardAudit(Strict):
    """Rows whose own solution or answer should get the full reward, and a wrong response should not."""

    rows: Rows
    """Rows of the data that were asked about."""

    of: Rows
    """Rows of the data file."""

    references: Rows
    """Rows with a solution or an answer of their own to try."""

    full: Rows
    """Of these: how many got the full reward."""

    wrong: Rows
    """Wrong responses: a blank, a constant, and another row's answer to each row."""

    paid: Rows
    """Of these: how many got the full reward all the same."""

    refused: Rows
    """Rows that cannot be scored, whatever the response."""

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return self.full == self.references and not self.paid and not self.refused

    @property
    def text(self) -> str:
        """The figures in one line."""
        some = f"{self.rows} rows" if self.rows == self.of else f"{self.rows} of {self.of} rows"
        refused = f", {self.refused} refused" if self.refused else ""
        return (
            f"on {some}: {self.full} of {self.references} own answers got the full reward, {self.paid} of {self.wrong} "
            f"wrong ones did{refused}"
        )

    @model_validator(mode="after")
    def _shares_are_of_what_was_tried(self) -> RewardAudit:
        for part, whole in (("rows", "of"), ("full", "references"), ("paid", "wrong"), ("refused", "rows")):
            if getattr(self, part) > getattr(self, whole):
                raise cross_error(f"is more than {whole}, {getattr(self, whole)}, of which it is a part", part)
        return self
