"""Which responses of a step are kept for people to read, and how they come to the disk.

Invariants:
- what is kept follows from the job's seed and the round alone, so it is the same with a resume as without;
- prompts are drawn whole, by a lot that the job's seed gives each prompt once: so one can compare the samples of a
  prompt, the same prompts come again in each epoch, and no content decides;
- texts are decoded, compressed and written beside training, one step after another; a checkpoint waits for them;
- a disk that takes no texts ends no run: it is told once, and training goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from ...rounds.machines.events import SampleKey
from ...rounds.machines.outcome import Fate
from ...rounds.machines.round import Round
from ...traces.kept_samples import FOLDER, KeptSample, forget_after, samples_file, write_samples
from ...traces.trace_events import RewardPart
from ..rollout.prompts import PromptText
from ..rollout.reward_sum import PartScore
from ..rollout.round_samples import RolloutSample
from ..trainer.train_samples import group_advantages
from .execution_folder import written


def parts_record(parts: Mapping[str, PartScore]) -> dict[str, dict[str, Any]]:
    """A sample's parts for the trace, by name; {} of a reward of one part, which the sample's own keys tell."""
    if len(parts) < 2:
        return {}
    return {
        name: {
            "value": part.value, "s": round(part.seconds, 6), "outcome": part.outcome, "deadline_s": part.deadline_s,
            "attempts": part.attempts,
        }
        for name, part in parts.items()
    }  # fmt: skip


Ended = tuple[RolloutSample, Fate | None]
"""A sample that was decoded to its end or to the cap, and what became of it."""


def ended_samples(round_: Round, samples: Mapping[SampleKey, RolloutSample]) -> list[Ended]:
    """The samples of a finished round that were decoded to their end, by draw and number; not those aborted before."""
    trained = {
        SampleKey(draw.number, number)
        for draw in round_.draws
        if draw.fate is Fate.TRAINED
        for number in round_.trained_samples(draw)
    }
    found: list[Ended] = []
    for key, sample in sorted(samples.items()):
        if sample.finished_s is not None:
            fate = round_.draws[key.draw].fate
            found.append((sample, Fate.SURPLUS if fate is Fate.TRAINED and key not in trained else fate))
    return found


def chosen(ended: Sequence[Ended], most: int | None, seed: int) -> list[tuple[Ended, str]]:
    """(sample, why it is kept): the samples of prompts drawn by lot, as many whole prompts as `most` samples have room
    for, but one at least (None: all prompts), then the longest, the best and the
    worst of those that were trained, where they are not among them."""
    groups: dict[tuple[bytes, str, bool, int], list[Ended]] = {}
    for sample, fate in ended:
        # Of several draws of a prompt the trained one comes first.
        lot = hashlib.sha256(f"{seed}/{sample.prompt_id}".encode()).digest()
        groups.setdefault((lot, sample.prompt_id, fate is not Fate.TRAINED, sample.draw), []).append((sample, fate))
    kept: list[tuple[Ended, str]] = []
    for place in sorted(groups):
        if kept and most is not None and len(kept) + len(groups[place]) > most:
            break
        kept += [(each, "drawn") for each in groups[place]]
    trained = [each for each in ended if each[1] is Fate.TRAINED] or ended
    scored = [each for each in trained if each[0].reward is not None]
    extremes = {
        "longest": max(trained, key=lambda each: len(each[0].response_tokens), default=None),
        "best": max(scored, key=lambda each: each[0].known_reward, default=None),
        "worst": min(scored, key=lambda each: each[0].known_reward, default=None),
    }
    there = {each[0].key for each, _ in kept}
    for why, extreme in extremes.items():
        if extreme is not None and extreme[0].key not in there:
            there.add(extreme[0].key)
            kept.append((extreme, why))
    return kept


class SampleKeeper:
    """Keeps responses of one run.

    Args:
        run_dir: the run's folder.
        most: samples of a step that are drawn; 0: nothing is kept; None: all.
        seed: of the job's algorithm.
        algorithm: its name, which says what an advantage is.
        prompts: by id.
        decode_text: a response as rewards read it; called in a thread.
    """

    def __init__(
        self,
        run_dir: Path,
        most: int | None,
        seed: int,
        algorithm: str,
        prompts: Mapping[str, PromptText],
        decode_text: Callable[[list[int]], str],
    ) -> None:
        self._run_dir, self._most, self._seed, self._algorithm = run_dir, most, seed, algorithm
        self._prompts, self._decode_text = prompts, decode_text
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="samples")
        self._writing: Future[None] | None = None
        self._told = False

    def keep(self, step: int, kind: str, epoch_of: Callable[[str], int], ended: Sequence[Ended]) -> str | None:
        """Begin to write the responses of a step; returns why those of a step before could not be written, once."""
        fault = self.settle()
        if self._most == 0:
            return fault
        advantages = self._advantages(ended)
        kept = [
            (each, why, epoch_of(each[0].prompt_id), advantages.get(each[0].key))
            for each, why in chosen(ended, self._most, self._seed)
        ]
        self._writing = self._writer.submit(self._write, step, kind, kept)
        return fault

    def _advantages(self, ended: Sequence[Ended]) -> dict[SampleKey, float]:
        groups: dict[int, list[RolloutSample]] = {}
        for sample, fate in ended:
            if fate is Fate.TRAINED:
                groups.setdefault(sample.draw, []).append(sample)
        return {
            sample.key: advantage
            for group in groups.values()
            for sample, advantage in zip(
                group, group_advantages(self._algorithm, [each.known_reward for each in group]), strict=True
            )
        }

    def _write(self, step: int, kind: str, kept: Sequence[tuple[Ended, str, int, float | None]]) -> None:
        rows = [self._row(step, kind, *each) for each in kept]
        write_samples(samples_file(self._run_dir, step), rows)

    def _row(self, step: int, kind: str, ended: Ended, why: str, epoch: int, advantage: float | None) -> KeptSample:
        sample, fate = ended
        return KeptSample(
            step=step, kind=kind, kept=why, prompt=sample.prompt_id, draw=sample.draw, sample=sample.sample,
            epoch=epoch, fate=None if fate is None else fate.value, reward=sample.reward, advantage=advantage,
            reward_parts=msgspec.convert(parts_record(sample.reward_parts), dict[str, RewardPart]),
            reward_outcome=sample.reward_outcome, reward_detail=sample.reward_detail,
            tokens=len(sample.response_tokens), prompt_tokens=len(sample.prompt_tokens), truncated=sample.truncated,
            issued_s=round(sample.issued_s, 6), finished_s=round(sample.finished_s or 0.0, 6),
            reward_s=round(sample.reward_s, 6), version=sample.version_end,
            prompt_text=self._prompts[sample.prompt_id].text,
            response=self._decode_text(sample.response_tokens.tolist()),
        )  # fmt: skip

    def settle(self) -> str | None:
        """Wait until what was begun is written; why it could not be, once a run."""
        if self._writing is None:
            return None
        try:
            self._writing.result()
        except OSError as error:
            told, self._told = self._told, True
            return None if told else f"responses cannot be kept ({error.strerror or error}); training goes on"
        finally:
            self._writing = None
        return None

    def back_to(self, step: int) -> None:
        """Forget the steps after `step`, which the run does again. Raises RunFailed."""
        self.settle()
        with written(self._run_dir / FOLDER):
            forget_after(self._run_dir, step)

    def close(self) -> None:
        """Write what was begun."""
        self.settle()
        self._writer.shutdown()
