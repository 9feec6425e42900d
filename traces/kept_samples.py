"""The responses that a run keeps beside its trace: a gzipped JSON Lines file a step, `samples/step-000012.jsonl.gz`.

Invariants:
- a file holds one step whole or is not there: it is written under another name and renamed;
- files of steps that a run goes back over are deleted, so no response is there twice;
- the lines drawn by lot come first, whole prompts, in the same order in all steps; then the extremes that the lot left.

docs/samples.md has the meaning of every key, and how responses are chosen.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ..plans.phrases.sentences import one_line
from ..plans.yaml.errors import InputError
from ..plans.yaml.input_files import opened
from .trace_events import RewardPart

FOLDER = "samples"
"""In a run's folder."""


class KeptSample(Struct, frozen=True, kw_only=True):
    """A response that was decoded to its end or to the cap, as a line of a file has it. Lengths in tokens, times in
    seconds; what is not known is None.

    `kept`: `drawn` by lot, or the extreme that it is of its step: `longest`, `best`, `worst`. `reward_parts`: by name,
    of a reward of several parts. `advantage`: as the loss had it; None if it was not trained. `issued_s`, `finished_s`:
    since the round began. `version`: of the weights that decoded it.
    """

    step: int
    kind: str
    kept: str
    prompt: str
    draw: int
    sample: int
    epoch: int
    fate: str | None
    reward: float | None
    advantage: float | None
    reward_parts: dict[str, RewardPart] = field(default_factory=dict)
    reward_outcome: str = ""
    reward_detail: str = ""
    tokens: int
    prompt_tokens: int
    truncated: bool
    issued_s: float
    finished_s: float
    reward_s: float
    version: str
    prompt_text: str
    response: str

    @property
    def name(self) -> str:
        """Which response it is, in words."""
        return f"step {self.step}, prompt {one_line(self.prompt)}, draw {self.draw}, sample {self.sample}"


_LINE = msgspec.json.Decoder(KeptSample)


def samples_file(run_dir: Path, step: int) -> Path:
    """Where the responses of a step are."""
    return run_dir / FOLDER / f"step-{step:06d}.jsonl.gz"


def kept_steps(run_dir: Path) -> dict[int, Path]:
    """The files of a run by step, in order; {} if it kept none."""
    found = {}
    for path in (run_dir / FOLDER).glob("step-*.jsonl.gz"):
        if match := re.fullmatch(r"step-(\d{1,12})\.jsonl\.gz", path.name):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def write_samples(path: Path, rows: Iterable[KeptSample]) -> None:
    """Write the file of a step, or replace it; the same rows give the same bytes. Raises OSError."""
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(".partial")
    partial.write_bytes(gzip.compress(lines, compresslevel=6, mtime=0))
    partial.replace(path)


def forget_after(run_dir: Path, step: int) -> None:
    """Delete the files of later steps, which the run does again. Raises OSError."""
    for number, path in kept_steps(run_dir).items():
        if number > step:
            path.unlink()


def read_samples(path: Path, most: int | None = None) -> Iterator[KeptSample]:
    """Yield the first `most` responses of a file, or all. Raises InputError if it is torn or of something else."""
    number = 0
    with opened(path) as file, gzip.GzipFile(fileobj=file) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if most is not None and number > most:
                    return
                yield _LINE.decode(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            why = f"torn after {number} responses ({error})"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"damaged in line {number} ({error})"
        else:
            return
        raise InputError(f"is {why}; delete it, or put the whole file back", str(path))


ORDERS = ("shortest", "longest", "best", "worst")
ONLY = ("truncated", "deferred", "long", "short")


def in_order(rows: Iterable[KeptSample], order: str | None) -> list[KeptSample]:
    """Responses sorted by length or reward, those without a reward last; None: as they are. Ties keep their order."""
    if order is None:
        return list(rows)
    if order in ("shortest", "longest"):
        return sorted(rows, key=lambda row: row.tokens, reverse=order == "longest")
    sign = -1.0 if order == "best" else 1.0
    return sorted(rows, key=lambda row: math.inf if row.reward is None else sign * row.reward)


def fits(row: KeptSample, prompt: str | None, only: str | None, search: str | None) -> bool:
    """Whether a response is of a prompt, is one of `ONLY`, and holds a text, in any case, in its prompt or itself."""
    which = {"truncated": row.truncated, "deferred": row.fate == "deferred", row.kind: True}
    return (
        (prompt is None or row.prompt == prompt)
        and (only is None or which.get(only, False))
        and (search is None or any(search.casefold() in text.casefold() for text in (row.response, row.prompt_text)))
    )


def spread(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many of some numbers, evenly spread, the first and the last among them."""
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(place * (len(numbers) - 1) / (most - 1))] for place in range(most)]


def clipped(text: str, most: int) -> str:
    """A text without its middle, if it has more than `most` characters; how many are left out is told."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return f"{text[:head]}\n[... {len(text) - most:,} characters ...]\n{text[len(text) - (most - head) :]}"
