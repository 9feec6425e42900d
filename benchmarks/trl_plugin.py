"""A plan's rounds inside TRL: a GRPOTrainer on this CPU, plain and with the plug-in, on the same model, data and steps.

    python -m benchmarks.trl_plugin [--json] [--steps 16] [--folder DIR]

The model and data are the demo's (`rlplan init`), responses end at 512 tokens; the plan is solved for them from the
profile that ships with the examples. Three trainers take turns, a step each, so that all see the same machine:
`generate`, TRL without the plug-in; `sync`, a plan of plain rounds, which decodes by the plug-in's engine; `exact`, the
plan. `step_ratio` is the faster plain one's seconds a trained sample over those of `exact`, in a cycle of so many short
and long rounds as defer and train equally many prompts; seconds are TRL's own `step_time`.

`length_ratio` is on unchanged weights: the mean length of groups of 1,024 prompts, each trained once by rounds of the
plan, over that of other draws of the same prompts that nothing cuts. `resume_equal`: a run in a process of its own is
killed once it has a checkpoint with deferred prompts; resumed, it goes on with the prompts, kinds of round, tokens and
weights of a run that was left alone. `dropped`: prompts that rounds took and that were neither trained nor wait, nor
went back to where they came from.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from rlplan.executor.example.write import write_example
from rlplan.executor.rewards.keyhunt import score
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import dump
from rlplan.rounds.machines.events import SampleKey
from rlplan.rounds.machines.outcome import Fate
from rlplan.rounds.schedule import Schedule
from rlplan.rounds.seeds import RoundSeeds, SeedLedger

from .entry import as_json_option, run, tell
from .example_plans import change_job, shipped_plan

CAP, P, N, SEED = 512, 16, 3, 0
LENGTH_PROMPTS, ROWS = 1024, 256
CHECKPOINT, RESUMED_TO, KILL_WAIT_S = 4, 8, 240.0


@click.command()
@click.option("--steps", default=16, help="Steps of each of the three trainers.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the example there; one that is there is used.")
@click.option("--until-killed", is_flag=True, hidden=True)
@as_json_option
def main(steps: int, folder: Path | None, until_killed: bool, as_json: bool) -> None:
    """Compare a GRPOTrainer with and without a plan's rounds."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = os.environ["HF_HUB_OFFLINE"] = "1"
    with scratch(folder) as place:
        if until_killed:
            exact_trainer(place, place / "killed", steps).trainer.train()
            return
        if not (place / "plans" / "exact.yaml").exists():
            prepare(place)
        tell(measure(place, steps), as_json)


@contextlib.contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    made = Path(tempfile.mkdtemp(prefix="rlplan-trl-"))
    try:
        yield made / "example"
    finally:
        shutil.rmtree(made)


def prepare(place: Path) -> None:
    """The demo's example with shorter responses, and its plans."""
    write_example(place, SEED)
    change_job(place, rollout={"prompts_per_step": P, "samples_per_prompt": N, "max_response_tokens": CAP})
    for mode in ("sync", "exact"):
        (place / "plans").mkdir(exist_ok=True)
        dump(shipped_plan(place, mode), place / "plans" / f"{mode}.yaml")


def measure(place: Path, steps: int) -> dict[str, Any]:
    """All figures."""
    arms = {name: Arm(place, place / name, steps, name) for name in ("generate", "sync", "exact")}
    take_turns([arm.trainer for arm in arms.values()])
    seconds = {name: arm.seconds_per_sample() for name, arm in arms.items()}
    plain = min(seconds["generate"], seconds["sync"])
    ratio, error, left_out = length_ratio(place)
    equal, waiting = resume_equal(place)
    short = load_plan(place / "plans" / "exact.yaml").job.rounds.short
    return {
        "step_ratio": round(plain / seconds["exact"], 3),
        "length_ratio": round(ratio, 4),
        "length_ratio_error": round(error, 4),
        "dropped": arms["exact"].dropped() + left_out,
        "resume_equal": equal,
        "deferred_at_checkpoint": waiting,
        "seconds_per_sample": {name: round(value, 4) for name, value in seconds.items()},
        "ratio_to_generate": round(seconds["generate"] / seconds["exact"], 3),
        "ratio_to_sync": round(seconds["sync"] / seconds["exact"], 3),
        "steps": {name: arm.kinds() for name, arm in arms.items()},
        "reward": {name: [round(value, 3) for value in arm.reward()] for name, arm in arms.items()},
        "plan": {"cutoff_tokens": short.cutoff_tokens, "issued_prompts": short.issue.prompts},
    }


# -- trainers ----------------------------------------------------------------------------------------------------------


@dataclass
class Arm:
    """A trainer and what it did. `mode`: generate (TRL alone), sync or exact."""

    place: Path
    out: Path
    steps: int
    mode: str
    save_steps: int = 0
    seen: list[tuple[str, ...]] = field(default_factory=list)
    tokens: list[list[list[int]]] = field(default_factory=list)
    outcomes: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        rows = [json.loads(line) for line in (self.place / "data.jsonl").read_text(encoding="utf-8").splitlines()]
        self.prompts = [str(row["prompt"]) for row in rows]
        args = GRPOConfig(
            output_dir=str(self.out),
            max_steps=self.steps,
            save_strategy="steps" if self.save_steps else "no",
            save_steps=self.save_steps or 1,
            per_device_train_batch_size=P,
            gradient_accumulation_steps=N,
            num_generations=N,
            max_completion_length=CAP,
            learning_rate=5e-5,
            loss_type="grpo",
            mask_truncated_completions=True,
            gradient_checkpointing=False,
            seed=SEED,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
            disable_tqdm=True,
        )

        def keyhunt(
            prompts: list[str], completions: list[str], completion_ids: list[list[int]], **row: Any
        ) -> list[float]:
            self.seen.append(tuple(prompts))
            self.tokens.append([list(ids) for ids in completion_ids])
            return [score(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]

        data = Dataset.from_dict({"prompt": self.prompts})
        self.trainer = GRPOTrainer(str(self.place / "model"), keyhunt, args=args, train_dataset=data)
        self.planned = None
        if self.mode != "generate":
            from rlplan.frameworks.trl.trl_rollout import plan_trainer

            self.planned = plan_trainer(self.trainer, self.place / "plans" / f"{self.mode}.yaml")
            end = self.planned.schedule.end

            def noted(machine: Any) -> Any:
                self.outcomes.append(end(machine))
                return self.outcomes[-1]

            self.planned.schedule.end = noted  # type: ignore[method-assign]

    def logged(self, name: str) -> list[float]:
        return [float(entry[name]) for entry in self.trainer.state.log_history if name in entry]

    def kinds(self) -> dict[str, int]:
        long = int(sum(self.logged("rounds/long")))
        return {"short": len(self.logged("step_time")) - long, "long": long}

    def reward(self) -> tuple[float, float]:
        """Mean reward of the first and of the last quarter."""
        rewards, part = self.logged("reward"), max(1, self.steps // 4)
        return statistics.fmean(rewards[:part]), statistics.fmean(rewards[-part:])

    def seconds_per_sample(self) -> float:
        """Seconds of a trained sample; of short and long rounds in the shares in which they defer and train as many."""
        seconds = self.logged("step_time")
        if self.mode != "exact":
            return statistics.fmean(seconds) / (P * N)
        steps = list(zip(self.logged("rounds/long"), seconds, self.outcomes, strict=True))
        short, long = ([step for step in steps if step[0] == kind] for kind in (0.0, 1.0))
        if not long or not short:
            raise RunFailed(f"of {len(steps)} steps all are of one kind; take more --steps")
        deferred = statistics.fmean(len(outcome.prompts[Fate.DEFERRED]) for _, _, outcome in short)
        trained = [statistics.fmean(len(outcome.trained) for _, _, outcome in kind) for kind in (short, long)]
        share = deferred / trained[1]
        cycle_s = statistics.fmean(s for _, s, _ in short) + share * statistics.fmean(s for _, s, _ in long)
        return cycle_s / (N * (trained[0] + share * trained[1]))

    def dropped(self) -> int:
        """Prompts that rounds took and that neither reached the rewards, nor wait, nor are back in the stream."""
        assert self.planned is not None
        schedule, row_of = self.planned.schedule, self.planned.row_of
        taken = {prompt for outcome in self.outcomes for prompt in outcome.taken}
        seen = {text for batch in self.seen for text in batch}
        free = {prompt for epoch in schedule.state()["epochs"] for prompt in epoch["fresh"]}
        return sum(row_of(prompt)["prompt"] not in seen for prompt in taken - set(schedule.deferred) - free)


def exact_trainer(place: Path, out: Path, steps: int) -> Arm:
    """A trainer that writes a checkpoint after every `CHECKPOINT` steps."""
    return Arm(place, out, steps, "exact", save_steps=CHECKPOINT)


def take_turns(trainers: list[Any]) -> None:
    """Train them in this process, a step of each at a time."""
    from transformers import TrainerCallback

    turn, alive, change = [0], list(range(len(trainers))), threading.Condition()
    errors: list[BaseException] = []

    def pass_on(own: int, leave: bool = False) -> None:
        with change:
            following = alive[(alive.index(own) + 1) % len(alive)]
            if leave:
                alive.remove(own)
            turn[0] = following
            change.notify_all()
            if not leave:
                change.wait_for(lambda: turn[0] == own)

    class AfterEachStep(TrainerCallback):
        def __init__(self, own: int) -> None:
            self.own = own

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            pass_on(self.own)

    def work(own: int, trainer: Any) -> None:
        with change:
            change.wait_for(lambda: turn[0] == own)
        try:
            trainer.train()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        pass_on(own, leave=True)

    for own, trainer in enumerate(trainers):
        trainer.add_callback(AfterEachStep(own))
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(trainers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# -- what is trained ---------------------------------------------------------------------------------------------------


def length_ratio(place: Path) -> tuple[float, float, int]:
    """Mean trained length over the unconditioned mean, its standard error, and how many prompts were never trained.

    The two means are of independent draws of the same prompts, so their difference is averaged over prompts.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlplan.frameworks.plan_rounds import planned_rounds
    from rlplan.frameworks.trl.trl_decode import PlannedSample, SamplingRule, TransformersEngine, decode_all, run_round

    model = AutoModelForCausalLM.from_pretrained(place / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    plan = place / "plans" / "exact.yaml"
    spec = planned_rounds(plan, prompts_per_step=P, samples_per_prompt=N, max_tokens=CAP).spec
    lines = (place / "data.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in random.Random(SEED).sample(lines, LENGTH_PROMPTS)]
    texts: dict[str, list[int]] = {row["id"]: tokenizer(row["prompt"])["input_ids"] for row in rows}

    def engine() -> TransformersEngine:
        return TransformersEngine(model, SamplingRule(), [tokenizer.eos_token_id], ROWS)

    schedule, trained = Schedule(spec, list(texts), SEED), dict[str, float]()
    while schedule.epoch == 0 or schedule.deferred:
        if schedule.epoch > 0 and not schedule.draining:
            schedule.drain()
        number, machine = schedule.round_number, schedule.begin()
        seeds = RoundSeeds(SEED, schedule.epoch_of, number if machine.cuts else None)
        run_round(machine, engine(), texts.__getitem__, SeedLedger(seeds))
        for group in schedule.end(machine).trained:
            if schedule.epoch_of(group.prompt) == 0:
                trained[group.prompt] = statistics.fmean(group.tokens)
    whole = RoundSeeds(SEED + 1, lambda prompt: 0, None)
    # Short prompts have few keys and long responses: in the batch of others they would keep these waiting.
    names = [(prompt, sample) for prompt in sorted(texts, key=lambda prompt: len(texts[prompt])) for sample in range(N)]
    drawn = [
        PlannedSample(SampleKey(place, 0), texts[prompt], whole.of(prompt, 0, sample))
        for place, (prompt, sample) in enumerate(names)
    ]
    decode_all(engine(), drawn, CAP)
    free: dict[str, list[int]] = {}
    for (prompt, _), sample in zip(names, drawn, strict=True):
        free.setdefault(prompt, []).append(len(sample.response))
    both = [(length, statistics.fmean(free[prompt])) for prompt, length in trained.items()]
    mean = statistics.fmean(other for _, other in both)
    ratio = statistics.fmean(length for length, _ in both) / mean
    spread = statistics.stdev(length - ratio * other for length, other in both)
    return ratio, spread / len(both) ** 0.5 / mean, len(texts) - len(trained)


def resume_equal(place: Path) -> tuple[bool, int]:
    """Whether a run that was killed and resumed did what a run did that was not, and how many prompts waited."""
    import torch

    for name in ("killed", "alone"):
        shutil.rmtree(place / name, ignore_errors=True)
    options = ["--folder", str(place), "--steps", str(RESUMED_TO), "--until-killed"]
    with (place / "killed.log").open("w") as log:
        victim = subprocess.Popen([sys.executable, "-m", "benchmarks.trl_plugin", *options], stdout=log, stderr=log)
    written = place / "killed" / f"checkpoint-{CHECKPOINT}" / "trainer_state.json"
    deadline = time.monotonic() + KILL_WAIT_S
    while victim.poll() is None and not written.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.2)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    if not written.exists():
        raise RunFailed(f"the run that was to be killed wrote no checkpoint; see {place / 'killed.log'}")
    kept = json.loads(written.read_text())["stateful_callbacks"]["PlannedRoundsState"]["attributes"]
    alone = exact_trainer(place, place / "alone", RESUMED_TO)
    alone.trainer.train()
    resumed = exact_trainer(place, place / "resumed", RESUMED_TO)
    resumed.trainer.train(resume_from_checkpoint=str(written.parent))
    weights, expected = resumed.trainer.model.state_dict(), alone.trainer.model.state_dict()
    equal = (
        resumed.seen == alone.seen[CHECKPOINT:]
        and resumed.tokens == alone.tokens[CHECKPOINT:]
        and resumed.logged("rounds/long") == alone.logged("rounds/long")
        and all(torch.equal(weights[name], expected[name]) for name in expected)
    )
    return equal, len(json.loads(kept["rounds"])["deferred"])


if __name__ == "__main__":
    run(main)
