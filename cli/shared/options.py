"""Options that several commands share, and refusals of options that do not apply to a document or an action."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from ...plans.yaml.errors import InputError

OVERWRITE = "overwrite a file that rlplan did not write"
"""Help text of --force for an output file."""

force_option = click.option("--force", "overwrite", is_flag=True, help=f"{OVERWRITE[:1].upper()}{OVERWRITE[1:]}.")
"""The option --force of commands in which it does nothing else."""

trust_option = click.option(
    "--trust",
    metavar="DIGEST",
    help="Run what another user wrote, if it has this digest, which the refusal and execute --dry-run print; any: "
    "whatever it is.",
)
"""The option --trust of commands that run plans."""

for_option = click.option(
    "--for",
    "made_for",
    type=click.Choice(["executor", "any"]),
    default="executor",
    show_default=True,
    help="Who is to run the plan. executor: only layouts and levers that rlplan execute can run are considered; any: "
    "all that are priced, for other frameworks.",
)
"""The option --for of commands that solve."""

trace_option = click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Length trace (JSONL). Default: the profile's; a shipped profile has none.",
)
lengths_option = click.option(
    "--lengths",
    metavar="NAME|QUANTILES",
    help="Without a trace: lengths that ship (rlplan lengths list), as math-16k; or, as a last resort, "
    "p50=800,p95=4000,max=16384[,icc=0.5]. What they leave open is in the plan's error. With ,scale=0.8 after either, "
    "all lengths times a factor that was measured.",
)

ACTIONS = ("list", "show", "import")
"""Actions of `rlplan lengths` and `rlplan rewards`."""


def must_fit_action(action: str, operand: str | None, listing: str, showing: str) -> None:
    """Raise InputError for an operand or options that do not fit the action.

    `listing` is the message for a list with an operand, `showing` that for a show without one.
    """
    if action != "import":
        refuse_options_but(action, "as_json")
    if (operand is None) != (action == "list"):
        importing = "import what? Name a table: CSV, JSON Lines, a JSON array or Parquet"
        raise InputError({"list": listing, "show": showing, "import": importing}[action])


class Finite(click.FloatRange):
    """A finite number in a range: click's range alone lets NaN pass, and infinity if it has no upper end."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


class HowMany(click.ParamType):  # type: ignore[type-arg]
    """A number from 0 on, or `all`, which is None."""

    name = "number|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "all" or value is None:
            return None
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a number from 0 on nor all", param, ctx)
        return int(value)


class Objectives(click.Command):
    """A command whose `--objective usd-within SECONDS` is one value of two words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        for word in args:
            if joined and joined[-1] in ("usd-within", "--objective=usd-within") and not word.startswith("-"):
                joined[-1] += f" {word}"
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


def refuse_options_but(subject: str, *allowed: str) -> None:
    """Raise InputError if the command line has an option that is not in `allowed` (parameter names).

    `subject` names the document or action in the message.
    """
    context = click.get_current_context()
    options = {param.name: param.opts[0] for param in context.command.params if isinstance(param, click.Option)}
    for name, option in options.items():
        source = context.get_parameter_source(name or "")
        if name not in allowed and source is click.core.ParameterSource.COMMANDLINE:
            takes = ", ".join(options[key] for key in options if key in allowed)
            raise InputError(f"{option} does not apply to {subject}, which takes only {takes}")
