"""`rlplan`: the entry point. Commands are imported when they are called, so that `--help` answers at once.

Exit codes: 0 done, 1 the run failed, or the machine (its memory, its disk), 2 bad input, 3 no feasible plan, 130
interrupted (execute: after a checkpoint).
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import warnings

import click

from .. import __version__
from ..plans.yaml.errors import RlplanError
from .manual import with_manual

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INFEASIBLE, EXIT_INTERRUPTED = 1, 2, 3, 130

_COMMANDS = {
    "init": "Write a ready example: cluster, job, data and a tiny model.",
    "profile": "Measure what each phase of a job costs on this machine.",
    "lengths": "Response lengths: tables that ship, and traces imported from a table of your own.",
    "rewards": "Try and audit a job's reward; reward seconds that ship, or of your own.",
    "solve": "Simulate candidates, choose by integer program, write the plan: of a job, or of many that share nodes.",
    "compare": "Solve one job for several clusters, nodes or values; show the plans side by side.",
    "refresh": "Predict an edited plan anew, so that it is valid again.",
    "check": "Check plans: schema, physics, staleness, policy.",
    "diff": "Show what changes between two plans, by meaning, and its cost.",
    "show": "Draw a plan: in the terminal, or as a page.",
    "simulate": "Simulate a run of a plan, as it is or with other values.",
    "execute": "Run real training as one plan says, or several in turns.",
    "apply": "Make running groups those of a new plan, job by job.",
    "status": "Show what running groups do now: jobs, turns, slowdowns, moves.",
    "report": "Show what a run did beside what its plan predicted.",
    "tune": "Refit costs and lengths from a run; a new plan where it gains more than the error.",
    "schema": "Print the JSON Schema of a document.",
    "completion": "Print a shell's completion script.",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f".{name}", __package__)
        command: click.Command = getattr(module, f"{name}_command")
        return with_manual(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], _COMMANDS, 1)
            ctx.fail(f"No such command '{args[0]}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rlplan")
def cli() -> None:
    """Plan, tune and execute synchronous RL post-training of language models.

    init or your own job -> profile -> solve -> check, diff, show -> execute -> report -> tune, and again. Every command
    has examples in its --help.

    Exit codes: 0 done, 1 run or machine failed, 2 bad input, 3 no feasible plan, 130 interrupted (execute: after a
    checkpoint).
    """


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"warning: {message}", err=True)


MOST_ERRORS = 100
"""Most faults that are listed; a document with more of them is probably the wrong file."""


_LABELS = {EXIT_FAILED: "run failed", EXIT_BAD_INPUT: "error", EXIT_INFEASIBLE: "no feasible plan"}


def _tell(error: RlplanError) -> None:
    """Print an error line for each fault."""
    lines, label = error.lines(), _LABELS[error.exit_code]
    for line in lines[:MOST_ERRORS]:
        click.echo(f"{label}: {line}", err=True)
    if len(lines) > MOST_ERRORS:
        click.echo(f"{label}: {len(lines) - MOST_ERRORS} further faults are not listed; mend these first", err=True)


def main() -> None:
    """Run the command line; turn known errors into one line and an exit code."""
    warnings.showwarning = _warn  # one line, not Python's two with a source location
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may hold what a terminal cannot show
    try:
        code = cli.main(prog_name="rlplan", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = EXIT_BAD_INPUT
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        see = f"; see {context.command_path} --help" if context else ""
        click.echo(f"error: {' '.join(error.format_message().split()).rstrip('.')}{see}", err=True)
        code = EXIT_BAD_INPUT
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        code = EXIT_INTERRUPTED
    except RlplanError as error:
        _tell(error)
        code = error.exit_code
    except ModuleNotFoundError as error:
        # Whatever is not ours comes with an extra; `pip install rlplan` installs what plans, and no more.
        missing = (error.name or "").split(".")[0]
        if missing in ("", __name__.split(".")[0]):
            raise
        click.echo(f"error: this command needs {missing}; in a checkout: pip install '.[gpu]' or '.[cpu]'", err=True)
        code = EXIT_BAD_INPUT
    except MemoryError:
        click.echo("error: the memory of this machine, or what it allows this process, does not suffice", err=True)
        code = EXIT_FAILED
    except OSError as error:
        code = _machine_failed(error)
    sys.exit(_flushed(code or 0))


def _machine_failed(error: OSError) -> int:
    """Print an error of the machine (a failing disk, a pipe that nobody reads); returns the exit code."""
    if isinstance(error, BrokenPipeError):
        _forget_stdout()  # the reader has closed the pipe: no error
        return EXIT_FAILED
    where = "" if error.filename is None else f"{error.filename}: "
    click.echo(f"error: {where}{error.strerror or error}", err=True)
    return EXIT_FAILED


def _flushed(code: int) -> int:
    """Flush standard output; returns `code`, or the code of a failure if standard output refuses the text."""
    try:
        if sys.stdout is not None:  # None if the shell closed it
            sys.stdout.flush()
    except OSError as error:
        failed = _machine_failed(error)
        _forget_stdout()
        return code or failed
    return code


def _forget_stdout() -> None:
    """Replace standard output: else Python, when it ends, writes the rest of the buffer and fails again."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - it is open until the process ends


if __name__ == "__main__":
    main()
