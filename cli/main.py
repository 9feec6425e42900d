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
from typing import NamedTuple

import click

from .. import __version__
from ..plans.yaml.errors import RlplanError


class Page(NamedTuple):
    """What a command's help says beside its options.

    Attributes:
        summary: one line, for the list of commands.
        examples: (purpose, command line).
        see_also: other commands.
        exits: the meaning of the exit codes other than 2, bad input.
        bad_input: what exit code 2 means.
    """

    summary: str
    examples: tuple[tuple[str, str], ...]
    see_also: tuple[str, ...]
    exits: str
    bad_input: str

    @classmethod
    def of(cls, text: str) -> tuple[str, Page]:
        """(name of the command, its page), from a block of `_MANUAL`."""
        head, *lines = text.splitlines()
        name, _, summary = head.partition(": ")
        examples = [line.strip().partition(" | ") for line in lines if " | " in line]
        facts = {key: fact for key, _, fact in (line.strip().partition(": ") for line in lines if " | " not in line)}
        return name, cls(
            summary,
            tuple((purpose, command) for purpose, _, command in examples),
            tuple(facts["see"].split(", ")) if "see" in facts else (),
            facts.get("exits", "0 done"),
            facts.get("bad input", "bad input (a line for each fault, nothing written)"),
        )


_MANUAL = """
init: Write a ready example: cluster, job, data and a tiny model.
  see: profile, solve
  What another trainer is set up to do | rlplan init --from run_grpo.sh --gpus 1x8xH100 job
  A job of your own on 64 GPUs; writes math/ | rlplan init --gpus 8x8xH100 --model Qwen2.5-32B math
  A tiny model and a task, ready to profile | rlplan init runs/demo/example

profile: Measure what each phase of a job costs on this machine.
  exits: 0 done, 1 the measurement failed
  see: solve
  Measure on this machine; writes job/profile.yaml | rlplan profile job
  Measure nothing: a first plan without the GPUs | rlplan profile job --shipped Qwen2.5-14B-Instruct

lengths: Response lengths: tables that ship, and traces imported from a table of your own.
  see: solve, schema
  Which lengths ship | rlplan lengths list
  One of them: quantiles, model, source, error | rlplan lengths show math-16k
  From a log of your own | rlplan lengths import log.csv --column prompt=prompt_id --column tokens=response_tokens \
--cap 16384 -o lengths.jsonl

import-trace: Logs and dumps of verl, slime and TRL as a length trace, and as a run that report and tune read.
  see: audit, lengths, report, tune
  What is in a log, and what is not | rlplan import-trace verl.log
  A run of verl beside a plan | rlplan import-trace verl.log --plan plan.yaml --run runs/verl
  slime's dumps as lengths to solve with | rlplan import-trace dumps/ --lengths lengths.jsonl
  Both: steps of the log, lengths of the dumps | rlplan import-trace slime.log dumps/ --plan plan.yaml --run runs/slime

audit: Which prompts over-sampling dropped, by another trainer's dumps, and what that did to lengths.
  see: import-trace, solve
  What slime's over-sampling dropped | rlplan audit dumps/ --cap 16384
  The same as a page, with what its log says was filtered | rlplan audit dumps/ slime.log --html audit.html
  verl's dumps, with the data set's rows | rlplan audit rollout_data/ --rows 17398 --tokenizer Qwen/Qwen2.5-7B

rewards: Try and audit a job's reward; reward seconds that ship, or of your own.
  exits: 0 done, 1 try: the row is refused, or scoring failed; audit: a row fails
  see: profile, solve, check
  What the reward sees in a response, and says | rlplan rewards try job --row 17 --response answer.txt
  Many responses, a line each | rlplan rewards try job --responses said.jsonl --json
  Does it pay what is right, and nothing else | rlplan rewards audit job
  What ships, by kind of reward | rlplan rewards list
  One of them: quantiles, source, error | rlplan rewards show code
  Times of your own, into a profile | rlplan rewards import times.csv --column seconds=exec_s --column correct=passed \
--profile job/profile.yaml

solve: Simulate candidates, choose by integer program, write the plan: of a job, or of many that share nodes.
  exits: 0 done, 3 no plan keeps the limits (says which binds)
  see: check, compare, diff, show, execute
  The fastest unbiased plan; writes job/plan.yaml | rlplan solve job
  With lengths of a job like it | rlplan solve job --trace lengths.jsonl
  With lengths that ship, for a first look | rlplan solve job --lengths math-16k
  Lengths may be a tenth off | rlplan solve job --bias-budget 0.1 --out plans/fast.yaml
  Fewest dollars, the mean step within 120 s | rlplan solve job --objective usd-within 120
  How many nodes pay | rlplan solve job --frontier nodes
  For another framework | rlplan solve job --for any --out plans/any.yaml
  Plain rounds, to measure others against | rlplan solve job --plain --out plain.yaml
  Which jobs share which nodes | rlplan solve workload.yaml --objective usd_per_unit
  The same, beside what runs already | rlplan solve workload.yaml --from groups.yaml --out new.yaml

compare: Solve one job for several clusters, nodes or values; show the plans side by side.
  exits: 0 done, 3 no point has a plan
  see: solve, simulate
  How many nodes pay | rlplan compare job --vary cluster.pools.main.nodes=1,2,4,8,16
  Which of two clusters | rlplan compare cluster-a.yaml cluster-b.yaml
  Which GPUs, and how large a step | rlplan compare job --cluster h100.yaml --cluster h200.yaml --vary \
job.rollout.prompts_per_step=64,128 --html page.html

refresh: Predict an edited plan anew, so that it is valid again.
  exits: 0 done, 3 the edited plan breaks a limit (says which)
  see: check, simulate, diff
  After an edit of its decisions | rlplan refresh plan.yaml
  Beside the edited plan | rlplan refresh plan.yaml --out refreshed.yaml --json

check: Check plans: schema, physics, staleness, policy.
  exits: 0 no finding but warnings, 1 other findings (with --executor: or a plan that rlplan execute cannot run)
  bad input: a file that cannot be read or is no document (the other files are checked)
  see: diff, schema
  Everything that a review needs to know | rlplan check plans/*.yaml
  Can rlplan execute run it | rlplan check plan.yaml --executor
  Annotations in a pull request | rlplan check plans/*.yaml --format github
  Findings for GitHub code scanning | rlplan check plans/*.yaml --sarif rlplan.sarif
  Under a policy, with profiles of this month | rlplan check plan.yaml --policy rlplan.policy.yaml --max-age-days 30

doctor: Does the set-up of any trainer fit, what clashes, what binds, what would be faster.
  exits: 0 no finding but warnings, 1 other findings: it does not fit, or sizes do not divide
  bad input: a file that cannot be read, a model or a GPU that is not known
  see: init, check, compare
  A launch script of verl, slime, vime or OpenRLHF | rlplan doctor run_grpo.sh --gpus H100 --host-gb 1007
  The sums behind each finding | rlplan doctor grpo.yaml --gpus H100 --explain
  No file at hand: the same facts as options | rlplan doctor --framework slime --model Qwen3-30B-A3B --gpus 1x8xH100 \
--host-gb 1007 --optimizer-on host

diff: Show what changes between two plans, by meaning, and its cost.
  exits: 0 done; with --exit-code 0 the same, 1 they differ
  see: check, show
  What a new plan changes | rlplan diff old.yaml new.yaml
  For a pull request's comment | rlplan diff origin/main:plans/math.yaml plans/math.yaml --markdown
  In a script: 0 the same, 1 they differ | rlplan diff old.yaml new.yaml --exit-code

show: Draw a plan: in the terminal, or as a page.
  see: diff, simulate
  One screen | rlplan show plan.yaml
  One page, for a browser without a network | rlplan show plan.yaml --html plan.html
  Every event, for ui.perfetto.dev | rlplan show groups.yaml --timeline timeline.json

export: Write a plan as the files of TRL, verl, slime, vime, SkyRL or OpenRLHF.
  see: check, init
  Rounds of the plan in TRL, by the plug-in | rlplan export plan.yaml --to trl --out trl
  Keys alone, and what that costs | rlplan export plan.yaml --to verl --no-plugin --json

simulate: Simulate a run of a plan, as it is or with other values.
  exits: 0 done, 1 findings
  see: show, tune
  Another cutoff | rlplan simulate plan.yaml --set plan.job.rounds.short.cutoff_tokens=512
  More samples, on slower engines | rlplan simulate plan.yaml --set job.rollout.samples_per_prompt=16 --set \
profile.rollout.0.step_s=0.02
  Lengths of a run | rlplan simulate plan.yaml --trace runs/run --timeline timeline.json
  Who keeps the bound as phases are now | rlplan simulate groups.yaml

execute: Run real training as one plan says, or several in turns.
  exits: 0 done, 1 the run failed or --dry-run has findings, 130 interrupted, with a checkpoint
  see: report, samples, tune, export-model
  Train | rlplan execute plan.yaml --steps 100 --out runs/a
  Go on after Ctrl-C | rlplan execute plan.yaml --steps 100 --out runs/a --resume
  Compare plans side by side | rlplan execute sync.yaml plan.yaml --steps 48 --out runs/compared
  Drafts from an earlier run | rlplan execute plan.yaml --steps 100 --out runs/b --history runs/a
  The model of every 20th step as well | rlplan execute plan.yaml --steps 100 --out runs/c --save-model-every 20

export-model: Write a run's model as a Hugging Face folder, for transformers and vLLM.
  exits: 0 done, 1 the disk does not take it
  see: execute, report
  The latest checkpoint's | rlplan export-model runs/a model
  An earlier one's, in bfloat16 | rlplan export-model runs/a model-20 --step 20 --dtype bfloat16

apply: Make running groups those of a new plan, job by job.
  exits: 0 done, 1 a move failed or the driver of the groups ended
  see: status, solve, diff
  What would move, at what price | rlplan apply new.yaml --out runs/a --dry-run
  Make the moves | rlplan apply new.yaml --out runs/a

status: Show what running groups do now: jobs, turns, slowdowns, moves.
  see: apply, report
  Who does what now | rlplan status runs/a
  Again and again | rlplan status runs/a --watch

watch: Show runs while they go on: bars with the time left, and a page that follows.
  exits: 0 the runs have ended (--until-end), 130 Ctrl-C
  see: report, execute, samples
  A run that goes on; open the address that is printed | rlplan watch runs/a
  Two runs beside each other | rlplan watch runs/a runs/b
  Only here, until they end | rlplan watch runs/a runs/b --no-serve --until-end
  For a script, a line for each step | rlplan watch runs/a --no-serve --until-end --json

report: Show what a run did beside what its plan predicted.
  see: samples, tune
  Predicted beside measured | rlplan report runs/a
  The same as a page; also while the run goes on | rlplan report runs/a --html report.html

samples: Show responses that a run kept: prompt, text, reward, length; hints of reward hacking.
  exits: 0 done, also with hints
  see: execute, report
  The last step | rlplan samples runs/a
  The longest responses of ten steps, whole | rlplan samples runs/a --step 91:100 --sort longest --limit 3 --full
  One prompt over the steps, side by side | rlplan samples runs/a --prompt q17
  What was cut off and says "wait" | rlplan samples runs/a --only truncated --search wait
  For a script, a line each | rlplan samples runs/a --step 1:100 --json

tune: Refit costs and lengths from a run; a new plan where it gains more than the error.
  see: diff, execute
  Is there a better plan? | rlplan tune runs/a
  Write it elsewhere | rlplan tune runs/a --out plans/next.yaml
  Switches of jobs that shared nodes | rlplan tune runs/g1 --plan groups.yaml

schema: Print the JSON Schema of a document.
  see: check
  For an editor | rlplan schema plan > plan.schema.json
  All of them, into a folder | rlplan schema --out .
  Of a line of a length trace | rlplan schema lengths

completion: Print a shell's completion script.
  Bash | eval "$(rlplan completion bash)"
  Zsh, in .zshrc | eval "$(rlplan completion zsh)"
  Fish | rlplan completion fish > ~/.config/fish/completions/rlplan.fish
"""
"""A block for each command: its summary; what its exit codes mean; commands to see; examples, behind their purpose."""

PAGES = dict(map(Page.of, _MANUAL.strip().split("\n\n")))


def with_manual(command: click.Command) -> click.Command:
    """Add the command's page to its help, below the options; returns the command."""
    assert command.name is not None
    page = PAGES[command.name]
    lines = ["\b", "Examples:"]
    for purpose, line in page.examples:
        lines += [f"  # {purpose}", f"  {line}"]
    lines += ["", "\b", f"Exit codes: {page.exits}, 2 {page.bad_input}."]
    if page.see_also:
        lines += ["", "\b", "See also: " + ", ".join(f"rlplan {name}" for name in page.see_also)]
    command.epilog = "\n".join(lines)
    return command


EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INFEASIBLE, EXIT_INTERRUPTED = 1, 2, 3, 130

_COMMANDS = {name: page.summary for name, page in PAGES.items()}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        word = name.replace("-", "_")
        module = importlib.import_module(f".{word}", __package__)
        command: click.Command = getattr(module, f"{word}_command")
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
