"""The end of every command's help, below its options: examples, exit codes, related commands.

One table holds them all, so that a test can check that every command has all three.
"""

from __future__ import annotations

from typing import NamedTuple

import click


class Page(NamedTuple):
    """The end of a command's help.

    Attributes:
        examples: (purpose, command line).
        exits: the meaning of the exit codes other than 2, bad input.
        bad_input: what exit code 2 means.
        see_also: other commands.
    """

    examples: tuple[tuple[str, str], ...]
    exits: str
    see_also: tuple[str, ...]
    bad_input: str = "bad input (a line for each fault, nothing written)"


_DONE = "0 done"
PAGES = {
    "init": Page(
        (
            ("A job of your own on 64 GPUs; writes math/", "rlplan init --gpus 8x8xH100 --model Qwen2.5-32B math"),
            ("A tiny model and a task, ready to profile", "rlplan init runs/demo/example"),
        ),
        _DONE,
        ("profile", "solve"),
    ),
    "profile": Page(
        (
            ("Measure on this machine; writes job/profile.yaml", "rlplan profile job"),
            ("Measure nothing: a first plan without the GPUs", "rlplan profile job --shipped Qwen2.5-14B-Instruct"),
        ),
        f"{_DONE}, 1 the measurement failed",
        ("solve",),
    ),
    "lengths": Page(
        (
            ("Which lengths ship", "rlplan lengths list"),
            ("One of them: quantiles, model, source, error", "rlplan lengths show math-16k"),
            (
                "From a log of your own",
                "rlplan lengths import log.csv --column prompt=prompt_id --column tokens=response_tokens "
                "--cap 16384 -o lengths.jsonl",
            ),
        ),
        _DONE,
        ("solve", "schema"),
    ),
    "rewards": Page(
        (
            ("What the reward sees in a response, and says", "rlplan rewards try job --row 17 --response answer.txt"),
            ("Many responses, a line each", "rlplan rewards try job --responses said.jsonl --json"),
            ("Does it pay what is right, and nothing else", "rlplan rewards audit job"),
            ("What ships, by kind of reward", "rlplan rewards list"),
            ("One of them: quantiles, source, error", "rlplan rewards show code"),
            (
                "Times of your own, into a profile",
                "rlplan rewards import times.csv --column seconds=exec_s --column correct=passed "
                "--profile job/profile.yaml",
            ),
        ),
        f"{_DONE}, 1 try: the row is refused, or scoring failed; audit: a row fails",
        ("profile", "solve", "check"),
    ),
    "solve": Page(
        (
            ("The fastest unbiased plan; writes job/plan.yaml", "rlplan solve job"),
            ("With lengths of a job like it", "rlplan solve job --trace lengths.jsonl"),
            ("With lengths that ship, for a first look", "rlplan solve job --lengths math-16k"),
            ("Lengths may be a tenth off", "rlplan solve job --bias-budget 0.1 --out plans/fast.yaml"),
            ("Fewest dollars, the mean step within 120 s", "rlplan solve job --objective usd-within 120"),
            ("How many nodes pay", "rlplan solve job --frontier nodes"),
            ("For another framework", "rlplan solve job --for any --out plans/any.yaml"),
            ("Plain rounds, to measure others against", "rlplan solve job --plain --out plain.yaml"),
            ("Which jobs share which nodes", "rlplan solve workload.yaml --objective usd_per_unit"),
            (
                "The same, beside what runs already",
                "rlplan solve workload.yaml --from groups.yaml --out new.yaml",
            ),
        ),
        f"{_DONE}, 3 no plan keeps the limits (says which binds)",
        ("check", "compare", "diff", "show", "execute"),
    ),
    "compare": Page(
        (
            ("How many nodes pay", "rlplan compare job --vary cluster.pools.main.nodes=1,2,4,8,16"),
            ("Which of two clusters", "rlplan compare cluster-a.yaml cluster-b.yaml"),
            (
                "Which GPUs, and how large a step",
                "rlplan compare job --cluster h100.yaml --cluster h200.yaml "
                "--vary job.rollout.prompts_per_step=64,128 --html page.html",
            ),
        ),
        f"{_DONE}, 3 no point has a plan",
        ("solve", "simulate"),
    ),
    "refresh": Page(
        (
            ("After an edit of its decisions", "rlplan refresh plan.yaml"),
            ("Beside the edited plan", "rlplan refresh plan.yaml --out refreshed.yaml --json"),
        ),
        f"{_DONE}, 3 the edited plan breaks a limit (says which)",
        ("check", "simulate", "diff"),
    ),
    "check": Page(
        (
            ("Everything that a review needs to know", "rlplan check plans/*.yaml"),
            ("Can rlplan execute run it", "rlplan check plan.yaml --executor"),
            ("Annotations in a pull request", "rlplan check plans/*.yaml --format github"),
            ("Findings for GitHub code scanning", "rlplan check plans/*.yaml --sarif rlplan.sarif"),
            (
                "Under a policy, with profiles of this month",
                "rlplan check plan.yaml --policy rlplan.policy.yaml --max-age-days 30",
            ),
        ),
        "0 no finding but warnings, 1 other findings (with --executor: or a plan that rlplan execute cannot run)",
        ("diff", "schema"),
        "a file that cannot be read or is no document (the other files are checked)",
    ),
    "diff": Page(
        (
            ("What a new plan changes", "rlplan diff old.yaml new.yaml"),
            ("For a pull request's comment", "rlplan diff origin/main:plans/math.yaml plans/math.yaml --markdown"),
            ("In a script: 0 the same, 1 they differ", "rlplan diff old.yaml new.yaml --exit-code"),
        ),
        f"{_DONE}; with --exit-code 0 the same, 1 they differ",
        ("check", "show"),
    ),
    "show": Page(
        (
            ("One screen", "rlplan show plan.yaml"),
            ("One page, for a browser without a network", "rlplan show plan.yaml --html plan.html"),
            ("Every event, for ui.perfetto.dev", "rlplan show groups.yaml --timeline timeline.json"),
        ),
        _DONE,
        ("diff", "simulate"),
    ),
    "simulate": Page(
        (
            ("Another cutoff", "rlplan simulate plan.yaml --set plan.job.rounds.short.cutoff_tokens=512"),
            (
                "More samples, on slower engines",
                "rlplan simulate plan.yaml --set job.rollout.samples_per_prompt=16 --set profile.rollout.0.step_s=0.02",
            ),
            ("Lengths of a run", "rlplan simulate plan.yaml --trace runs/run --timeline timeline.json"),
            ("Who keeps the bound as phases are now", "rlplan simulate groups.yaml"),
        ),
        f"{_DONE}, 1 findings",
        ("show", "tune"),
    ),
    "execute": Page(
        (
            ("Train", "rlplan execute plan.yaml --steps 100 --out runs/a"),
            ("Go on after Ctrl-C", "rlplan execute plan.yaml --steps 100 --out runs/a --resume"),
            ("Compare plans side by side", "rlplan execute sync.yaml plan.yaml --steps 48 --out runs/compared"),
            ("Drafts from an earlier run", "rlplan execute plan.yaml --steps 100 --out runs/b --history runs/a"),
        ),
        f"{_DONE}, 1 the run failed or --dry-run has findings, 130 interrupted, with a checkpoint",
        ("report", "tune"),
    ),
    "apply": Page(
        (
            ("What would move, at what price", "rlplan apply new.yaml --out runs/a --dry-run"),
            ("Make the moves", "rlplan apply new.yaml --out runs/a"),
        ),
        f"{_DONE}, 1 a move failed or the driver of the groups ended",
        ("status", "solve", "diff"),
    ),
    "status": Page(
        (
            ("Who does what now", "rlplan status runs/a"),
            ("Again and again", "rlplan status runs/a --watch"),
        ),
        _DONE,
        ("apply", "report"),
    ),
    "report": Page(
        (
            ("Predicted beside measured", "rlplan report runs/a"),
            ("The same as a page; also while the run goes on", "rlplan report runs/a --html report.html"),
        ),
        _DONE,
        ("tune",),
    ),
    "tune": Page(
        (
            ("Is there a better plan?", "rlplan tune runs/a"),
            ("Write it elsewhere", "rlplan tune runs/a --out plans/next.yaml"),
            ("Switches of jobs that shared nodes", "rlplan tune runs/g1 --plan groups.yaml"),
        ),
        _DONE,
        ("diff", "execute"),
    ),
    "schema": Page(
        (
            ("For an editor", "rlplan schema plan > plan.schema.json"),
            ("All of them, into a folder", "rlplan schema --out ."),
            ("Of a line of a length trace", "rlplan schema lengths"),
        ),
        _DONE,
        ("check",),
    ),
    "completion": Page(
        (
            ("Bash", 'eval "$(rlplan completion bash)"'),
            ("Zsh, in .zshrc", 'eval "$(rlplan completion zsh)"'),
            ("Fish", "rlplan completion fish > ~/.config/fish/completions/rlplan.fish"),
        ),
        _DONE,
        (),
    ),
}


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
