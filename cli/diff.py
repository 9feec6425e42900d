"""`rlplan diff OLD NEW`"""

from __future__ import annotations

import json

import click


@click.command("diff")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--markdown", is_flag=True, help="Print GitHub markdown for a pull request, at most 40 lines.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the plans differ, as git diff does.")
@click.option("--full", is_flag=True, help="All rows, also of what did not change; with --markdown, without its limit.")
def diff_command(old: str, new: str, markdown: bool, as_json: bool, exit_code: bool, full: bool) -> int:
    """Show what changes from plan OLD to plan NEW, by meaning, and the cost of the changes.

    Both are plans of one job, or both are plans of groups: files, or REV:PATH as in git, which is read with its inputs
    from that revision. Write `none` for OLD if the plan is new, for NEW if it was removed.
    """
    from ..api.diff_plans import diff
    from ..plans.yaml.errors import InputError

    if markdown and as_json:
        raise InputError("--markdown and --json are two ways to print; give one of them")

    def began() -> None:
        click.echo("inputs differ: simulating the old decisions with the new plan's inputs", err=True)

    difference = diff(old, new, full=full, began=began)
    if as_json:
        click.echo(json.dumps(difference.as_dict(), allow_nan=False))
    elif markdown:
        click.echo(difference.markdown(None) if full else difference.markdown(), nl=False)
    else:
        from rich.console import Console

        from ..plans.diff.terminal_text import render

        Console(highlight=False).print(render(difference.report, full), soft_wrap=False)
    return 1 if exit_code and not difference.same else 0
