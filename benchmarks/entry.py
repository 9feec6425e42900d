"""Run a benchmark command. One line and an exit code: 1 a run failed, 2 bad input, 3 no feasible plan."""

from __future__ import annotations

import sys

import click

from rlplan.plans.yaml.errors import Infeasible, InputError, RunFailed


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
    except RunFailed as error:
        click.echo(f"failed: {error}", err=True)
        sys.exit(1)
    except Infeasible as error:
        click.echo(f"no feasible plan: {error}", err=True)
        sys.exit(3)
