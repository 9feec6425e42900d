"""`rlplan completion SHELL`"""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> int:
    """Print the completion script of SHELL.

    Bash needs version 4.4 or later.
    """
    from click.shell_completion import get_completion_class

    from .main import cli

    completion = get_completion_class(shell)
    assert completion is not None, "click completes these shells"
    click.echo(completion(cli, {}, "rlplan", "_RLPLAN_COMPLETE").source())
    return 0
