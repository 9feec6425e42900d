"""How fast the machine is beside when it was profiled: decode steps and the gradients of an update, measured anew.

The plan says what they took (`predicted.speed`), the trace what they take now; `rlplan report` tells a slower machine
from a wrong prediction. Nothing of the run changes: requests have seeds of their own and are dropped, weights are those
of the step that comes, and the gradients are dropped before any weight, moment or random state has changed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..plans.phrases.numbers import times
from ..plans.schema.predicted import PredictedSpeed, UpdateSpeed
from ..plans.yaml.errors import RunFailed
from .engines.engine_bench import LONG_TOKENS, SHORT_TOKENS, EngineBench
from .engines.engine_handle import EngineHandle
from .engines.fleet import Fleet
from .engines.messages import NO_RULES, SamplingRules
from .run import TrainingRun
from .trainer.train_samples import TrainSample
from .trainer.trainer_group import TrainerDied, while_trainer_lives

REPEATS = 2
"""Times that each is measured. Of decode steps the mean counts, since a run sees what others do on the machine, too; of
updates the last, since the first is the first call of its kind in a run."""


@dataclass(frozen=True, slots=True)
class SpeedCheck:
    """Measures again what plans say of the machine's speed, before a run's steps.

    Attributes:
        expected: by name of a run; a run that is not in it is not checked.
        vocabulary: tokens that prompts are made of.
        seeded: whether the job gives each sample a seed of its own.
        every: steps from one check of a run to the next; None: only before the first step.
        rules: by which the job's tokens are drawn.
    """

    fleet: Fleet
    expected: Mapping[str, PredictedSpeed]
    vocabulary: int
    seeded: bool
    every: int | None = None
    rules: SamplingRules = NO_RULES

    async def before_step(self, run: TrainingRun, begun: bool) -> str | None:
        """Check the speed if that is due, and write it into the run's trace; `begun`: this process has taken a step of
        the run. Returns a line for who watches. A check that an engine does not survive is left out."""
        expected = self.expected.get(run.name)
        if expected is None or (begun and (self.every is None or run.step_number % self.every)):
            return None
        try:
            decode_s = await while_trainer_lives(run.trainer, self._decode_s(run, expected))
            update_s = await while_trainer_lives(run.trainer, self._update_s(run, expected.update))
        except TrainerDied as death:
            await run.recover(death)
            return None
        except RunFailed as failure:
            return f"{run.name}: the machine's speed is not known: {failure}"
        finally:
            self.fleet.listen_no_more()
        rollout = statistics.fmean(now / then.step_s for now, then in zip(decode_s, expected.decode, strict=True))
        train = update_s / expected.update.seconds
        run.event("speed", step=run.step_number, decode_s=decode_s, update_s=update_s, rollout=rollout, train=train)
        if begun:
            return None
        return f"{run.name}: decoding takes {times(rollout)} the seconds that the profile has, training {times(train)}"

    async def _decode_s(self, run: TrainingRun, expected: PredictedSpeed) -> list[float]:
        """Seconds of each decode step on the engines of short rounds, which are sent the run's weights."""
        engines = self.fleet.engines(run.settings.of_round("short").rollout.layout)
        await run.turns.to_sending(run, engines)
        version = f"{run.name}:{run.step_number}:speed"
        await run.weights.sync(engines, version, False, lambda: run.turns.to_sending(run, engines))
        await run.turns.to_decoding(run, engines)
        engines = [engine for engine in engines if engine.version == version]
        if self.fleet.draft_tokens:
            for engine in engines:
                await engine.begin_drafts(0, 0)
        bench = EngineBench(self.fleet, self.vocabulary, 0, self.seeded, self.rules)
        found = [await self._step_s(bench, engines, d.sequences, d.kv_tokens) for d in expected.decode]
        if min(found) <= 0:
            raise RunFailed("the machine stalled while decode steps were timed")
        return found

    async def _step_s(self, bench: EngineBench, engines: list[EngineHandle], sequences: int, kv_tokens: float) -> float:
        prompt_tokens = max(1, round(kv_tokens - (SHORT_TOKENS + LONG_TOKENS) / 2))
        batches = bench.prompts(len(engines), sequences, prompt_tokens)
        await bench.seconds(engines, batches, 1)  # the prefix cache has them now
        return statistics.fmean([await bench.step_s(engines, batches) for _ in range(REPEATS)])

    async def _update_s(self, run: TrainingRun, expected: UpdateSpeed) -> float:
        """Seconds of the gradients of one update of short rounds."""
        groups, settings = self._groups(expected), run.settings.update_of("short")
        run.weights.retire()
        await run.turns.to_training(run)
        return [await run.trainer.time_update(groups, settings) for _ in range(REPEATS)][-1]

    def _groups(self, expected: UpdateSpeed) -> list[list[TrainSample]]:
        """Groups of the update; rewards differ, so that each sample has a gradient."""
        rng = np.random.default_rng(0)
        return [
            [
                TrainSample(
                    f"speed-{group}",
                    number,
                    rng.integers(self.vocabulary, size=expected.prompt_tokens, dtype=np.int32),
                    rng.integers(self.vocabulary, size=tokens, dtype=np.int32),
                    np.full(tokens, -1.0, dtype=np.float32),
                    reward=float(number % 2),
                    truncated=False,
                )
                for number, tokens in enumerate(expected.response_tokens)
            ]
            for group in range(expected.groups)
        ]
