"""Which options stand on the command line: a command that takes two kinds of document refuses those of the other."""

from __future__ import annotations

import click

from ..plans.errors import InputError


def refuse_options_but(what: str, *allowed: str) -> None:
    """Raise InputError if the command line holds another option than `allowed` (parameter names)."""
    context = click.get_current_context()
    options = {param.name: param.opts[0] for param in context.command.params if isinstance(param, click.Option)}
    for name, option in options.items():
        source = context.get_parameter_source(name or "")
        if name not in allowed and source is click.core.ParameterSource.COMMANDLINE:
            takes = ", ".join(options[key] for key in options if key in allowed)
            raise InputError(f"{option} does not apply to {what}, which takes {takes}")
