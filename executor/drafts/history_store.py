"""The responses that a run remembers of its prompts, for drafts.

Invariants:
- drafts change no distribution, so whatever is lost or damaged here costs speed and nothing else;
- at most `most_bytes` of tokens are kept: the responses of the oldest rounds go first;
- a file that cannot be read is as good as none, and its reader is told why.

What a response counts beside others: half for each epoch that it is older (the policy drifts), and twice where its
reward is above the mean of its group (training makes it likelier; RhymeRL, arXiv 2508.18588). Responses that were
aborted count as others: up to where they end, the policy wrote them.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...plans.yaml.errors import InputError
from ...traces.run_log import must_be_run_folder
from .draft_messages import PromptHistory, Tokens

HISTORY = "history.npz"
"""File of a checkpoint. It is not in the checkpoint's manifest: damage in it must not cost the checkpoint."""

MOST_BYTES = 512 * 2**20
"""Of tokens that a run keeps, 4 bytes each."""

EPOCHS = 2
"""Epochs before the current one whose responses to a prompt are kept: those before count an eighth at most."""

FADE = 0.5
ABOVE_MEAN = 2.0
FORMAT = 1


class Remembered(NamedTuple):
    """A response: the epoch in which its prompt was issued, the number of its round, whether it was decoded for drafts
    alone, what its reward makes it count, and its tokens, int32."""

    epoch: int
    round: int
    ahead: bool
    worth: float
    tokens: Tokens


class HistoryStore:
    """What is remembered, by prompt."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._prompts: dict[str, list[Remembered]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens."""
        return self._bytes

    def record(
        self,
        prompt: str,
        epoch: int,
        round_number: int,
        responses: Sequence[tuple[Tokens | Sequence[int], float | None]],
        ahead: bool = False,
    ) -> None:
        """Responses that a round wrote to a prompt, each with its reward; None: it has none, or was aborted."""
        rewards = [reward for _, reward in responses if reward is not None]
        mean = statistics.fmean(rewards) if rewards else 0.0
        kept = [each for each in self._prompts.get(prompt, ()) if each.epoch >= epoch - EPOCHS]
        for tokens, reward in responses:
            if len(tokens):
                worth = ABOVE_MEAN if reward is not None and reward > mean else 1.0
                kept.append(Remembered(epoch, round_number, ahead, worth, np.array(tokens, np.int32)))
        self._put(prompt, kept)
        if self._bytes > self._most_bytes:
            self._evict()

    def _put(self, prompt: str, kept: list[Remembered]) -> None:
        self._bytes -= _bytes(self._prompts.pop(prompt, ()))
        if kept:
            self._prompts[prompt] = kept
            self._bytes += _bytes(kept)

    def _evict(self) -> None:
        """Drop the oldest rounds, until an eighth of the room is free: eviction looks at all that is remembered."""
        sizes: dict[int, int] = {}
        for kept in self._prompts.values():
            for each in kept:
                sizes[each.round] = sizes.get(each.round, 0) + each.tokens.nbytes
        left, oldest = self._bytes, -1
        for number in sorted(sizes):
            if left <= self._most_bytes * 7 // 8:
                break
            left, oldest = left - sizes[number], number
        for prompt, kept in list(self._prompts.items()):
            if kept[0].round <= oldest:
                self._put(prompt, [each for each in kept if each.round > oldest])

    def of(self, prompt: str, epoch: int) -> PromptHistory | None:
        """What is remembered of a prompt that is issued in `epoch`; None: nothing."""
        kept = self._prompts.get(prompt)
        if not kept:
            return None
        ordered = sorted(kept, key=lambda each: each.ahead)  # those for drafts alone last
        weights = [each.worth * FADE ** max(epoch - each.epoch, 0) for each in ordered]
        return PromptHistory(prompt, [each.tokens for each in ordered], weights, sum(each.ahead for each in ordered))

    # -- on disk -------------------------------------------------------------------------------------------------------

    def packed(self) -> bytes:
        """Everything, as the bytes of an .npz file, whose parts have checksums of their own."""
        rows = [(prompt, each) for prompt, kept in self._prompts.items() for each in kept]
        names = json.dumps({"format": FORMAT, "prompts": [prompt for prompt, _ in rows]}).encode()
        tokens = [each.tokens for _, each in rows]
        file = io.BytesIO()
        np.savez(
            file,
            names=np.frombuffer(names, np.uint8),
            numbers=np.array([(each.epoch, each.round, each.ahead) for _, each in rows], np.int64).reshape(-1, 3),
            worths=np.array([each.worth for _, each in rows], np.float64),
            lengths=np.array([len(each) for each in tokens], np.int64),
            tokens=np.concatenate(tokens) if tokens else np.empty(0, np.int32),
        )
        return file.getvalue()

    def restore(self, data: bytes, prompts: Iterable[str] | None = None) -> str | None:
        """Continue from `packed()`; returns why that is impossible, and then remembers nothing.

        `prompts`: those that matter; None: all.
        """
        self._prompts, self._bytes = {}, 0
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                read = {name: arrays[name] for name in ("names", "numbers", "worths", "lengths", "tokens")}
            names = json.loads(read["names"].tobytes())
            if names["format"] != FORMAT:
                return f"it has format {names['format']}, and this version reads {FORMAT}"
            *texts, rest = np.split(read["tokens"].astype(np.int32), np.cumsum(read["lengths"]))
            if len(rest):
                return "it is damaged (more tokens than its responses have)"
            rows = list(zip(names["prompts"], read["numbers"].tolist(), read["worths"].tolist(), texts, strict=True))
        except Exception as error:  # noqa: BLE001 - whatever damage makes of a file, it costs speed and nothing else
            return f"it is damaged ({type(error).__name__})"
        wanted = None if prompts is None else set(prompts)
        found: dict[str, list[Remembered]] = {}
        for prompt, (epoch, number, ahead), worth, tokens in rows:
            if wanted is None or prompt in wanted:
                found.setdefault(prompt, []).append(Remembered(epoch, number, bool(ahead), worth, tokens.copy()))
        for prompt, kept in found.items():
            self._put(prompt, kept)
        if self._bytes > self._most_bytes:
            self._evict()
        return None

    def count_as_earlier(self) -> None:
        """What is remembered is of another run: its last round comes right before this one's first."""
        rows = [each for kept in self._prompts.values() for each in kept]
        epoch, number = (1 + max((of(each) for each in rows), default=-1) for of in (_epoch, _round))
        for prompt, kept in self._prompts.items():
            self._prompts[prompt] = [
                each._replace(epoch=each.epoch - epoch, round=each.round - number) for each in kept
            ]

    def check_invariants(self) -> None:
        """Assert what must hold between any two calls."""
        assert self._bytes == sum(map(_bytes, self._prompts.values())), "bytes are counted wrongly"
        assert self._bytes <= self._most_bytes, "more is remembered than there is room for"
        assert all(self._prompts.values()), "a prompt is remembered without a response"


def read_history(path: Path) -> tuple[bytes | None, str | None]:
    """The bytes of a file of a history, and why there are none."""
    try:
        return path.read_bytes(), None
    except OSError as error:
        return None, error.strerror or str(error)


def saved_history(run_dir: Path) -> Path:
    """The latest checkpoint of a run whose history can be read. Raises InputError if there is none."""
    must_be_run_folder(run_dir)
    checkpoints = sorted((run_dir / "checkpoints").glob("step-*"), reverse=True)
    faults = []
    for checkpoint in checkpoints:
        data, fault = read_history(checkpoint / HISTORY)
        store = HistoryStore()
        fault = store.restore(data) if data is not None else fault
        if fault is None and len(store):
            return checkpoint
        faults.append(f"{checkpoint.name}: {fault or 'it is empty'}")
    if not checkpoints:
        raise InputError(
            "has no checkpoint of a run; give the folder of one run that decoded with drafts", str(run_dir)
        )
    raise InputError(f"remembers nothing for drafts ({HISTORY} of {'; '.join(faults)}); give another run", str(run_dir))


def _epoch(each: Remembered) -> int:
    return each.epoch


def _round(each: Remembered) -> int:
    return each.round


def _bytes(kept: Iterable[Remembered]) -> int:
    return sum(each.tokens.nbytes for each in kept)
