"""What the commands of all benchmarks share: `--json`, the printed result, and how they end.

A command that fails prints one line; its exit code is 1 if a run failed, 2 for bad input, 3 if no plan is feasible.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from rlplan.plans.yaml.errors import Infeasible, InputError, RunFailed

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")


def tell(
    result: Mapping[str, Any], as_json: bool, text: str | Iterable[str] | Callable[[Any], str] | None = None
) -> None:
    """Print the result as one JSON line, or as text: this text, these lines, what `text` makes of it, a line a key."""
    if as_json:
        click.echo(json.dumps(result))
    elif text is None:
        click.echo("\n".join(f"{key:24} {value}" for key, value in result.items()))
    elif callable(text):
        click.echo(text(result))
    else:
        click.echo(text if isinstance(text, str) else "\n".join(text))


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
