"""Run a benchmark command: one line and exit code 2 for bad input, one line and exit code 3 without a feasible plan."""

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
