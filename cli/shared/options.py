"""What options of several commands have in common, and which of them stand on the command line: a command that takes
two kinds of document refuses those of the other."""

from __future__ import annotations

import math
from typing import Any

import click

from ...plans.yaml.errors import InputError

OVERWRITE = "overwrite a file that rlplan did not write"
"""What --force does to an output."""

force_option = click.option("--force", "overwrite", is_flag=True, help=f"{OVERWRITE[:1].upper()}{OVERWRITE[1:]}.")
"""For commands in which --force does nothing else."""


ACTIONS = ("list", "show", "import")
"""What `rlplan lengths` and `rlplan rewards` do with tables that ship and with files of one's own."""


def must_fit_action(action: str, operand: str | None, listing: str, showing: str) -> None:
    """Raise InputError for an operand or options that do not go with the action.

    `listing`, `showing`: what to say of a list with an operand, and of a show without one.
    """
    if action != "import":
        refuse_options_but(action, "as_json")
    if (operand is None) != (action == "list"):
        importing = "import what? Name a CSV, a gzipped CSV or JSON Lines"
        raise InputError({"list": listing, "show": showing, "import": importing}[action])


class Finite(click.FloatRange):
    """A number in a range that is no infinity and no NaN: click takes both into any range that has no upper end."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


def refuse_options_but(what: str, *allowed: str) -> None:
    """Raise InputError if the command line holds another option than `allowed` (parameter names)."""
    context = click.get_current_context()
    options = {param.name: param.opts[0] for param in context.command.params if isinstance(param, click.Option)}
    for name, option in options.items():
        source = context.get_parameter_source(name or "")
        if name not in allowed and source is click.core.ParameterSource.COMMANDLINE:
            takes = ", ".join(options[key] for key in options if key in allowed)
            raise InputError(f"{option} does not apply to {what}, which takes {takes}")
