"""How a benchmark that is a command ends: one line for bad input (exit 2), and for what has no plan (exit 3)."""

from __future__ import annotations

import sys

import click

from rlplan.plans.yaml.errors import Infeasible, InputError


def run(command: click.Command) -> None:
    """Run the command with the arguments of this process."""
    try:
        command(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except Infeasible as error:
        click.echo(f"no feasible plan: {error}", err=True)
        sys.exit(3)
