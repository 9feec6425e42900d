"""What the corpus solves, and what it asks of each plan: folders of documents and commands at `rlplan`'s command line.

A scenario is a folder and the commands that are called in it, in order. `Ask.part` says to which part an output
belongs; a scenario's outputs depend on its own folder alone.
"""

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cli.run_folders import REPORTED, write_runs
from ..plans.page.runs import write_run
from .documents import (
    CODE,
    EXAMPLES,
    GRPO,
    HERE,
    JUDGE,
    LINKS,
    MATH,
    SEARCH,
    changed,
    cluster,
    drawn_workload,
    gpus,
    job,
    lab,
    pool,
    workload,
    write,
    write_example,
    write_gpus,
    write_laptop,
)

QWEN = {"path": "Qwen/Qwen2.5-7B-Instruct", "dtype": "bfloat16"}
LAPTOP_PAIR = cluster(LINKS, main=pool(per_node=1, nodes=2), learn=pool(per_node=1, nodes=2))
LENGTHS = ("--trace", "lengths.jsonl")
TWO_H800 = cluster(main=gpus("H800", nodes=2))


@dataclass(frozen=True)
class Ask:
    """A command: its words, the output's name, and what is kept: standard output (JSON if it is), or files written."""

    name: str
    words: tuple[str, ...]
    part: str = "outputs"
    files: tuple[str, ...] = ()
    standard: bool = True


@dataclass(frozen=True)
class Scenario:
    """A folder, what writes its documents, and the commands; `coarse`: few candidates are simulated."""

    name: str
    prepare: Callable[[Path], None]
    asks: tuple[Ask, ...]
    coarse: bool = True


def solve(name: str, *options: str, out: str = "", document: str = "job.yaml") -> Ask:
    """Solve a document; the plan belongs to the part `planner`."""
    out = out or f"{name}.yaml"
    return Ask(f"{name}.plan", ("solve", document, *options, "--force", "-o", out), "planner", (out,), False)


def review(plan: str) -> tuple[Ask, ...]:
    """What a reader asks of a plan of a job."""
    file = f"{plan}.yaml"
    return (
        Ask(f"{plan}.check", ("check", file, "--json")),
        Ask(f"{plan}.show", ("show", file, "--json")),
        Ask(f"{plan}.screen", ("show", file)),
        Ask(f"{plan}.simulate", ("simulate", file, "--steps", "12", "--json")),
    )


def solved(*options: str) -> tuple[Ask, ...]:
    """Solve the job as plan.yaml, and what a reader asks of it."""
    return (solve("plan", *options), *review("plan"))


def asked(name: str, words: str, *files: str) -> Ask:
    """A command of words with a space between them; `files` it writes."""
    return Ask(name, tuple(words.split()), files=files)


def written(document: dict[str, Any], machines: Any = None, profile: str = "laptop") -> Callable[[Path], None]:
    """What writes the job on the small machine."""
    return lambda folder: write_laptop(folder, document, machines, profile)


def on_gpus(document: dict[str, Any], machines: Any, model: str = "Qwen2.5-7B") -> tuple[Callable[[Path], None], Ask]:
    """What writes the job on GPUs, and the command that takes the profile that ships."""
    profile = Ask(
        "profile", ("profile", "job.yaml", "--shipped", model, "--force"), "planner", ("profile.yaml",), False
    )
    return lambda folder: write_gpus(folder, document, machines), profile


def of_workload(document: dict[str, Any], machines: Any = None) -> Callable[[Path], None]:
    """What writes a workload and its cluster."""

    def prepare(folder: Path) -> None:
        write(folder, "cluster.yaml", machines or lab())
        write(folder, "workload.yaml", document)

    return prepare


def groups(*options: str, name: str = "groups") -> tuple[Ask, ...]:
    """Solve a workload, and what a reader asks of the plan."""
    file = f"{name}.yaml"
    return (
        solve(name, *options, document="workload.yaml"),
        Ask(f"{name}.check", ("check", file, "--json")),
        Ask(f"{name}.show", ("show", file, "--json")),
        Ask(f"{name}.screen", ("show", file)),
        Ask(f"{name}.simulate", ("simulate", file, "--json")),
    )


def scenarios() -> list[Scenario]:
    """All of them; those that take longest stand first."""
    return [*_examples(), *_laptops(), *_gpus(), *_groups(), *_runs()]


def _laptops() -> list[Scenario]:
    modes = (
        solve("sync", "--mode", "sync"),
        solve("plain", "--plain"),
        solve("exact", "--mode", "exact"),
        solve("defer", "--mode", "defer", "--seed", "3"),
        solve("race", "--mode", "race", "--bias-budget", "0.6"),
        *review("sync"), *review("exact"), *review("race"),
        asked("sync-exact.diff", "diff sync.yaml exact.yaml --json"),
        asked("exact-race.diff", "diff exact.yaml race.yaml --json"),
        asked("exact-race.markdown", "diff exact.yaml race.yaml --markdown"),
        asked("none-exact.diff", "diff none exact.yaml --json"),
        asked("exact.page", "show exact.yaml --html page.html", "page.html"),
        asked("exact.timeline", "simulate exact.yaml --steps 4 --timeline line.json", "line.json"),
        asked("exact.set", "simulate exact.yaml --steps 12 --set plan.job.issue.prompts_per_step=9 --json"),
        asked("all.check", "check cluster.yaml job.yaml profile.yaml exact.yaml race.yaml --json"),
        asked("frontier", "solve job.yaml --frontier nodes --force --json"),
    )  # fmt: skip
    race = job(slo={"step_p95_s": 9.0}, algorithm={**GRPO, "mask_truncated": True, "loss_aggregation": "token-mean"})
    predict = job(search={**SEARCH, "drafts": {"tokens": [2, 4], "acceptance": 0.7}, "balance": True})
    levers = {**SEARCH, "hand_over": [0.5], "tail": [0.5], "cutoff_tokens": {"min": 100}, "max_over_issue": 3.0}
    rewards = job(search=levers, reward=[CODE, {"kind": "math", "deadline_s": 5.0}])
    judged = job(search={"tp": [1], "micro_batch_tokens": [4096]}, reward=[MATH, JUDGE])
    lengths = [
        {**MATH},
        {"kind": "overlong", "cache_tokens": 200},
        {"kind": "format", "pattern": "<a>.*", "deadline_s": 1.0, "weight": 0.2},
    ]
    limited = {**MATH, "adaptive_timeout": {"min_s": 0.5, "anchor_factor": 2.0}}
    more = cluster(main=pool(nodes=2, cores=6))
    unstreamed = job(placement={"train_pool": "learn", "streams": False})
    handed = job(16, 4, search={**SEARCH, "hand_over": [0.5, 0.7]})
    fixed = job(search={**SEARCH, "cutoff_tokens": {"min": 300, "max": 300}})
    tiny, wide = (job(*size, search={"tp": [1], "micro_batch_tokens": [8192]}) for size in ((2, 2), (24, 8)))
    few = job(search={"tp": [1], "micro_batch_tokens": [4096]})
    exact = solved("--mode", "exact")
    return [
        Scenario("laptop", written(job()), modes),
        Scenario("race-within", written(race), solved("--mode", "race", "--bias-budget", "0.6", "--seed", "3")),
        Scenario("defer-filter", written(job(algorithm={**GRPO, "dynamic_sampling": True})), solved("--mode", "defer")),
        Scenario("predict", written(predict), (
            solve("plan", "--mode", "predict"), solve("sync", "--mode", "sync"), solve("exact", "--mode", "exact"),
            *review("plan"), *review("sync"), asked("plan-sync.diff", "diff plan.yaml sync.yaml --json"),
        )),
        Scenario("levers", written(rewards, more), (
            *solved("--mode", "exact", "--for", "any", "--objective", "usd"),
            solve("own", "--mode", "exact"), *review("own"), asked("plan-own.diff", "diff plan.yaml own.yaml --json"),
        )),
        Scenario("judge", written(judged, profile="judge"), (
            *solved("--mode", "sync"), solve("exact", "--mode", "exact"),
        )),
        Scenario("apart", written(job(placement={"train_pool": "learn"}), LAPTOP_PAIR), (
            *solved("--mode", "exact"), solve("sync", "--mode", "sync"),
        )),
        Scenario("apart-unstreamed", written(unstreamed, LAPTOP_PAIR), solved()),
        Scenario("streaming", written(handed), exact),
        Scenario("lengths-rewards", written(job(reward=lengths)), solved()),
        Scenario("deadlines", written(job(reward=limited)), exact),
        Scenario("tiny", written(tiny), exact),
        Scenario("wide", written(wide), exact[:1]),
        Scenario("cutoff", written(fixed), exact),
        Scenario("searched-predict", written(predict), (solve("plan", "--mode", "predict"),), coarse=False),
        Scenario("searched-levers", written(rewards, more), (solve("plan"),), coarse=False),
        Scenario("infeasible", written(job(slo={"step_p95_s": 0.01})), (solve("refused"),)),
        Scenario("searched", written(few), solved(), coarse=False),
    ]  # fmt: skip


def _gpus() -> list[Scenario]:
    sizes = {"tp": [1, 2], "micro_batch_tokens": [8192]}
    seven = job(16, 4, 4096, model=QWEN, search=sizes)
    plain, profile = on_gpus(seven, TWO_H800)
    apart, _ = on_gpus(job(8, 4, 4096, model=QWEN, search=sizes, placement={"train_pool": "learn"}), cluster(
        [{"pools": ["main", "learn"], "stream_bytes_per_s": 4e9}], main=gpus("H800"), learn=gpus("H800")))  # fmt: skip
    coded, _ = on_gpus(
        job(8, 4, 4096, model=QWEN, search={"tp": [2], "micro_batch_tokens": [8192]}, reward=CODE), TWO_H800
    )
    pools, _ = on_gpus(seven, cluster(a=gpus("H800"), b=gpus("H20", 96 * 10**9, usd_per_node_hour=10.0)))
    experts = job(
        8,
        4,
        4096,
        model={"path": "Qwen/Qwen3-30B-A3B", "dtype": "bfloat16"},
        search={"tp": [4], "micro_batch_tokens": [8192]},
    )
    of_experts, its_profile = on_gpus(experts, TWO_H800, "Qwen3-30B-A3B")
    return [
        Scenario("gpus", plain, (
            profile, *solved(*LENGTHS, "--mode", "exact"), solve("usd", *LENGTHS, "--objective", "usd"),
            solve("within", *LENGTHS, "--objective", "usd-within 120"), *review("within"),
            solve("assumed", "--lengths", "math-2k", "--mode", "exact"), *review("assumed"),
            asked("plan-within.diff", "diff plan.yaml within.yaml --json"),
            asked("plan-assumed.diff", "diff plan.yaml assumed.yaml --full"),
            asked("vary", "compare --vary cluster.pools.main.nodes=1,2 --mode sync --json --trace lengths.jsonl"),
        )),
        Scenario("gpus-apart", apart, (profile, *solved(*LENGTHS, "--mode", "exact", "--for", "any"))),
        Scenario("gpus-code", coded, (profile, *solved(*LENGTHS, "--mode", "exact"))),
        Scenario("gpus-pools", pools, (profile, *solved(*LENGTHS, "--objective", "usd"))),
        Scenario("experts", of_experts, (its_profile, *solved(*LENGTHS, "--mode", "exact", "--for", "any"))),
    ]  # fmt: skip


def _examples() -> list[Scenario]:
    large = {"rollout.prompts_per_step": 32, "search.tp": [4], "search.micro_batch_tokens": [33792]}
    demo = {"search.tp": [1], "search.micro_batch_tokens": [4096]}
    return [
        Scenario("math-32b", lambda folder: write_example(folder, "math-32b", large), solved(*LENGTHS)),
        Scenario("cpu-demo", lambda folder: write_example(folder, "cpu-demo", demo), (
            *solved(), solve("race", "--mode", "race"),
        )),
    ]  # fmt: skip


def _groups() -> list[Scenario]:
    usual = {"policy": "multi_rate", "group_cap": 4}
    three, five, seven = (drawn_workload(jobs, jobs, **usual) for jobs in (3, 5, 7))
    moved = changed(five, {"jobs.job-1.slo": 1.3, "jobs.job-4": None})
    ten = drawn_workload(10, 10, policy="first_come", group_cap=3, interference=0.02)
    unit = drawn_workload(4, 4, policy="round_robin", objective="usd_per_unit", tail_keep=0.5, margin=0.1)

    pair = cluster(
        [{"pools": ["main", "learn"], "stream_bytes_per_s": 4e9}],
        main=gpus("H800", nodes=2),
        learn=gpus("H800", nodes=2),
    )

    def again(folder: Path) -> None:
        of_workload(five)(folder)
        write(folder, "next.workload.yaml", moved)

    def own_jobs(folder: Path) -> None:
        placement = {"train_pool": "learn", "streams": False}
        search = {"tp": [1], "micro_batch_tokens": [4096]}
        write_gpus(folder, job(8, 4, 2048, model=QWEN, search=search, placement=placement), pair)
        source = {"slo": 2.0, "source": {"job": "job.yaml", "lengths": "lengths.jsonl", "nodes": [1, 1]}}
        write(folder, "workload.yaml", workload({"own": source, "other": {**source, "slo": 3.0}}, **usual))

    profile = Ask(
        "profile",
        ("profile", "job.yaml", "--shipped", "Qwen2.5-7B", "--pool", "main", "--force"),
        "planner",
        ("profile.yaml",),
        False,
    )
    return [
        Scenario("groups-example", lambda folder: write_example_workload(folder), groups()),
        Scenario("groups-3", of_workload(three), groups()),
        Scenario("groups-5", again, (
            *groups(), solve("later", "--from", "groups.yaml", document="next.workload.yaml"),
            solve("still", "--from", "groups.yaml", "--no-moves", document="next.workload.yaml"),
            asked("later.check", "check later.yaml --json"),
            asked("groups-later.diff", "diff groups.yaml later.yaml --json"),
            asked("groups-later.markdown", "diff groups.yaml later.yaml --markdown"),
        )),
        Scenario("groups-7", of_workload(seven, lab(5, 3)), groups()),
        Scenario("groups-10", of_workload(ten, lab(6, 4)), groups()),
        Scenario("groups-unit", of_workload(unit), groups()),
        Scenario("groups-own", own_jobs, (profile, *groups())),
    ]  # fmt: skip


def _runs() -> list[Scenario]:
    """Recorded runs: reports, and what is learned of them."""

    def reported(folder: Path) -> None:
        for mode in ("exact", "sync"):
            write_run(folder / mode, REPORTED, mode, steps=12)
        write_run(
            folder / "full",
            REPORTED,
            "exact",
            steps=9,
            full=True,
            end={"event": "end", "t_s": 99.0, "step": 9, "finished": True},
        )
        write_run(folder / "killed", REPORTED, "race", steps=8, killed=True)

    def recorded(mode: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            write_laptop(folder, job())
            run = folder / "run"
            run.mkdir()
            for home in (folder, run):
                shutil.copy(HERE / "recorded" / mode / "plan.yaml", home)
            trace = run / "trace.jsonl"
            trace.write_bytes(gzip.decompress((HERE / "recorded" / mode / "trace.jsonl.gz").read_bytes()))
            os.utime(trace, (1.7e9, 1.7e9))

        return prepare

    learned = (
        asked("report", "report run --json"), asked("report.text", "report run"),
        asked("report.page", "report run --html page.html", "page.html"),
        asked("check", "check plan.yaml --json"),
        asked("simulate-lengths", "simulate plan.yaml --trace run --steps 12 --json"),
        asked("tune", "tune run --out tuned.yaml --json", "tuned.yaml"),
        asked("tune.text", "tune run --out again.yaml"),
        asked("plan-tuned.diff", "diff plan.yaml tuned.yaml --json"),
    )  # fmt: skip
    refreshed = (
        solve("plan", "--mode", "exact"),
        asked("refresh", "refresh plan.yaml -o same.yaml --json", "same.yaml"),
        asked("edit", "simulate plan.yaml --set plan.job.rounds.short.cutoff_tokens=300 --steps 8"),
    )  # fmt: skip
    each = [(name, ("report", name, "--json")) for name in ("exact", "sync", "full", "killed")]
    return [
        Scenario("reported", reported, (
            asked("all", "report . --json"), asked("all.text", "report ."),
            asked("all.page", "report . --html page.html", "page.html"),
            *(Ask(name, words) for name, words in each), asked("full.text", "report full"),
        )),
        Scenario("group-runs", lambda folder: write_runs(folder / "runs") and None, (
            asked("status", "status runs --json"), asked("status.text", "status runs"),
            asked("report", "report runs --json"), asked("report.text", "report runs"),
        )),
        Scenario("run-sync", recorded("sync"), learned),
        Scenario("run-exact", recorded("exact"), learned),
        Scenario("refreshed", written(job()), refreshed),
    ]  # fmt: skip


def write_example_workload(folder: Path) -> None:
    """Copy the workload that ships."""
    shutil.copytree(EXAMPLES / "groups", folder, dirs_exist_ok=True)
