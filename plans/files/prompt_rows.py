"""Read the prompts: rows with `id`, `prompt` and `answer`, as the reward will read them.

A row's answer is taken with those of its further keys that the tests of code need (`answer_of_row`) and read by its
form (`code_tests`, `gold_of`), so that a row that no response could be scored against is refused by its line before
anything starts. Further keys that change a prompt are used, or refused where nothing here can use them; all others
(`source`, `level`, …) are ignored. docs/running.md has the list.
"""

from __future__ import annotations

import hashlib
import heapq
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..answers import AnswerError
from ..phrases.numbers import count
from ..schema.job import Job, JobPaths, RewardKind, RewardSpec, RowSets, job_paths, missing_files
from ..schema.rollout_spec import DataSpec
from ..yaml.errors import InputError, joined
from ..yaml.input_files import DATA_BYTES
from ..yaml.yaml_io import error_at
from .one_row import Prompt as Prompt
from .one_row import RowRefused, id_of, is_read, prompt_of, sources_of
from .row_files import PARQUET_MAGIC, decoded, folder_rows, json_rows, parquet_rows, unpacked

Rows = str | Path | RowSets
"""Where rows are: a file, a folder, or several sets of them."""

Judged = Literal["all", "fast", "no"]
"""Which answers are read as the reward will: `all`; `fast`, for planning: those of the first rows that need no
math-verify, which takes a second to begin and milliseconds for an expression; `no`: none, where they were read before.
"""

FAST_ROWS = 5000
"""Rows whose answers `fast` reads: about a second."""


@dataclass(frozen=True)
class RowFault:
    """A row that is refused.

    Attributes:
        line: of the file, counted from 1; the number of the row in Parquet.
        id: None where the row has none that can be read.
        message: what is wrong; what to do.
        unscorable: whether the row is in order but for its answer, which no response could be scored against; plans can
            be made with such rows, and no run.
        path: of the file, where there are several sets.
    """

    line: int
    id: str | None
    message: str
    unscorable: bool = False
    path: Path | None = None

    def error(self, path: Rows) -> InputError:
        """The fault as an error of the file at `path`, or of that of its set."""
        return InputError(self.text, str(self.path or path), self.line)

    @property
    def text(self) -> str:
        """The message with the row's id, on one line."""
        what, then, remedy = " ".join(self.message.split()).partition("; ")
        named = "" if self.id is None or f"'{self.id}'" in what else f" (id '{self.id[:80]}')"
        return f"{what}{named}{then}{remedy}"


MOST_FAULTS = 20
"""The most rows whose faults are listed; the number of further rows with faults is only counted."""

Progress = Callable[[str, float], None]
"""Told what is being read and the share that is done."""


def _untold(text: str, done: float) -> None:
    return


def read_rows(
    path: Rows,
    reward: RewardSpec | RewardKind = "function",
    judged: Judged = "all",
    progress: Progress = _untold,
    of_set: str | None = None,
) -> tuple[list[Prompt], list[RowFault]]:
    """(the good rows in file order, the faults of the others); a row has one fault at most.

    Args:
        reward: of the job, or its only kind. `math` and `code` compare a response with the row's answer, so the answer
            must not be empty, and must be one that they can read; a reward function gets any answer, also null.
        judged: which answers are read as the reward will.
        of_set: the name of the set that the file is.

    Raises InputError for a missing or unreadable file, a table (CSV), and a file without rows.
    """
    if isinstance(path, RowSets):
        return _rows_of_sets(path, reward, judged, progress)
    rows, faults = list[Prompt](), list[RowFault]()
    first_line: dict[str, int] = {}
    values = list(_values(path))
    for index, (line, value) in enumerate(values):
        if index % 512 == 0:
            progress(f"{index} of {len(values)} rows", index / len(values))
        values[index] = (line, None)  # freed as it is read: files may be large
        try:
            if isinstance(value, ValueError):
                raise RowRefused(f"{value}{'' if '; ' in str(value) else _WHOLE_LINES}")
            sources = sources_of(value, of_set)
            parts = [(reward, ())] if isinstance(reward, str) else [
                (part.kind, part.packages) for part in reward.parts if part.scores(sources)
            ]  # fmt: skip
            if not parts:
                known = f"is of {' and '.join(map(repr, sources))}" if sources else "has no data_source"
                raise RowRefused(f"row {known}, and no part of the reward scores it; name it in the rows of one")
            kinds = [kind for kind, _ in parts]
            prompt = prompt_of(value, kinds)
            if prompt.id in first_line:
                raise RowRefused(f"id '{prompt.id}' is also in line {first_line[prompt.id]}; give each row its own")
            asked = judged == "all" or (judged == "fast" and index < FAST_ROWS)
            if not {"math", "code"}.isdisjoint(kinds) and not (
                asked and all(is_read(prompt.answer, *part, judged == "all") for part in parts)
            ):
                prompt = replace(prompt, judged=False)
        except (RowRefused, AnswerError) as refused:
            faults.append(RowFault(line, id_of(value), str(refused), isinstance(refused, AnswerError)))
            continue
        first_line[prompt.id] = line
        rows.append(replace(prompt, line=line, sources=sources))
    return rows, faults


def _rows_of_sets(
    sets: RowSets, reward: RewardSpec | RewardKind, judged: Judged, progress: Progress
) -> tuple[list[Prompt], list[RowFault]]:
    rows, faults = dict[str, Prompt](), list[RowFault]()
    for name, path, weight in sets.sets:
        found, refused = read_rows(path, reward, judged, progress, name)
        faults += [replace(fault, path=path) for fault in refused]
        for row in found:
            for copy in range(1, weight + 1):
                own = f"{name}/{row.id}" + (f"#{copy}" if copy > 1 else "")
                if own in rows:
                    text = f"its id is '{own}', as another row's of weight {weight}; give it another one"
                    faults.append(RowFault(row.line, row.id, text, path=path))
                rows[own] = replace(row, id=own)
    return list(rows.values()), faults


def read_prompts(
    path: Rows, reward: RewardSpec | RewardKind = "function", judged: Judged = "all", progress: Progress = _untold
) -> list[Prompt]:
    """The rows in file order, as `read_rows`. Raises InputError as it does, and with a line for each bad row."""
    rows, faults = read_rows(path, reward, judged, progress)
    if not faults:
        return rows
    raise _refusal(path, faults, len(rows) + len(faults))


def _refusal(path: Rows, faults: Sequence[RowFault], rows: int) -> InputError:
    left = len(faults) - MOST_FAULTS
    errors = [fault.error(path) for fault in faults[:MOST_FAULTS]]
    if left > 0:
        rest = f"{left} further rows have faults, {len(faults)} of {rows} in all"
        errors.append(InputError(f"{rest}; rlplan check JOB --json lists them all by line and id", str(path)))
    return joined(errors)


def _values(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(line, value or JsonError) of each row of a file, or of a folder of them."""
    folder = Path(path).is_dir()
    data = b"" if folder else unpacked(path, DATA_BYTES)
    empty = True
    if folder or data[:4] == PARQUET_MAGIC:
        for number, row in folder_rows(Path(path)) if folder else parquet_rows(data, path):
            # Columns of ids are often whole numbers; JSON's would be quoted.
            named = isinstance(row.get("id"), int) and not isinstance(row["id"], bool)
            yield number, {**row, "id": str(row["id"])} if named else row
            empty = False
    else:
        for line, value in json_rows(decoded(data, path, "JSON Lines")):
            if empty and isinstance(value, ValueError) and (header := _header(data, line)):
                raise InputError(
                    f"is a table and not JSONL; write each row as {_SHAPE} on a line of its own", str(path), header
                )
            yield line, value
            empty = False
    if empty:
        raise InputError(f"has no rows; write one {_SHAPE} a line", str(path))


def _header(data: bytes, line: int) -> int | None:
    """The line, if it is the header of a table: column names with commas or tabs between them."""
    text = data.split(b"\n", line)[line - 1].decode(errors="replace").lstrip("\ufeff")
    columns = [column.strip().strip('"') for column in re.split("[,;\t]", text)]
    names = len(columns) > 1 and all(re.fullmatch(r"[A-Za-z_][\w .-]*", column) for column in columns)
    return line if names else None


def held_out_ids(data: DataSpec, ids: Iterable[str]) -> frozenset[str]:
    """The prompts that `data.held_out` keeps out of training, of these ids.

    Each prompt draws a number: the hash of the seed and its id. A share holds out the prompts whose number is below it,
    so a row that is added moves no other row. A count holds out the prompts with the smallest numbers, so a row that is
    added may move one other row back into training.
    """
    if data.held_out is None:
        return frozenset()
    rows = {name: without_copy(name) if data.sets else name for name in ids}  # all copies of a prompt, or none
    draws = {row: hashlib.sha256(f"{data.seed}:{row}".encode()).digest() for row in rows.values()}
    if data.held_out < 1:
        chosen = {row for row, draw in draws.items() if int.from_bytes(draw[:8]) < data.held_out * 2**64}
    else:
        chosen = set(heapq.nsmallest(int(data.held_out), draws, key=lambda row: draws[row]))
    return frozenset(name for name, row in rows.items() if row in chosen)


def without_copy(name: str) -> str:
    """The id of a prompt of a set, without the `#2` of its second time in an epoch."""
    return re.sub(r"#\d+$", "", name)


def evaluated_ids(data: DataSpec, ids: Iterable[str]) -> list[str]:
    """Those that are held out, each once however its set is weighed, in their order."""
    names = list(ids)
    held_out = held_out_ids(data, names)
    return [name for name in names if name in held_out and not (
        data.sets and (first := without_copy(name)) != name and first in held_out)]  # fmt: skip


def trained_rows(job: Job, data: Rows, judged: Judged = "all", progress: Progress = _untold) -> list[Prompt]:
    """The rows of the job's data file that are trained on, in its order. Raises InputError as `read_prompts` does."""
    rows = read_prompts(data, job.reward, judged, progress)
    held_out = held_out_ids(job.data, (row.id for row in rows))
    return [row for row in rows if row.id not in held_out]


def enough_prompts(job: Job, data: Rows, progress: Progress = _untold) -> int:
    """The number of prompts in the job's data file, for training.

    Raises InputError as `read_prompts` does, if there are fewer prompts than a step trains (the prompts of a step must
    all be different), and if none is held out for evaluations that name no data.
    """
    rows = read_prompts(data, job.reward, progress=progress)
    held_out_names = held_out_ids(job.data, (row.id for row in rows))
    held_out = len(held_out_names)
    evaluated = job.evaluate is not None and job.evaluate.data is None
    if evaluated and not held_out:
        raise InputError(
            f"none of its {count(len(rows), 'prompt')} is held out for evaluations (data.held_out); raise that, or "
            "name a file in evaluate.data",
            str(data),
        )
    parts = job.evaluated_reward.parts if evaluated else ()
    for row in rows if parts else ():
        if row.id in held_out_names and not any(part.scores(row.sources) for part in parts):
            raise InputError(
                f"prompt '{row.id}' is held out for evaluations, and none of their rewards scores it "
                f"({', '.join(part.label for part in parts)}, evaluate.rewards); name one that does",
                str(data), row.line,
            )  # fmt: skip
    return _enough(job, data, len(rows) - held_out)


def evaluated_prompts(job: Job, paths: JobPaths) -> int | None:
    """The number of prompts of an evaluation, for planning; None without evaluations, or where it is not known."""
    if job.evaluate is None:
        return None
    if job.evaluate.data is not None:
        file = paths.evaluation
        return len(read_prompts(file, job.evaluated_reward, "no")) if file is not None and file.exists() else None
    if paths.data is None:
        return job.data.held_out_of(job.data.prompts or 0)
    return len(evaluated_ids(job.data, (row.id for row in read_rows(paths.data, job.reward, "no")[0])))


def _enough(job: Job, data: Rows, rows: int) -> int:
    needed = job.rollout.prompts_per_step
    if rows < needed:
        beside = "" if job.data.held_out is None else " beside those of data.held_out"
        raise InputError(
            f"has {count(rows, 'prompt')}{beside}, and a step trains {needed} different ones "
            "(rollout.prompts_per_step); add rows, or lower that",
            str(data),
        )
    return rows


def data_file(job: Job, job_path: str | Path) -> Path | RowSets:
    """Absolute path of the job's prompts, for measuring and training. Raises InputError if the file is missing."""
    data = job_paths(job, job_path).data
    if data is None:
        loc, fault = next(each for each in missing_files(job, job_path, to_train=True) if each[0][0] == "data")
        place = loc if job.data.path or job.data.sets else ("data",)
        raise error_at(job_path, place, f"{'.'.join(map(str, loc))}: {fault}")
    return data


def evaluation_file(job: Job, job_path: str | Path) -> Path | None:
    """Absolute path of the prompts of the job's evaluations; None without evaluations. Raises InputError if it is
    missing."""
    if (fault := dict(missing_files(job, job_path, to_train=True)).get(("evaluate", "data"))) is not None:
        raise error_at(job_path, ("evaluate", "data"), f"evaluate.data: {fault}")
    return job_paths(job, job_path).evaluation


def prompts_to_plan(job: Job, job_path: str | Path, paths: JobPaths) -> int:
    """The number of prompts to plan with: the rows of the data file, or `data.prompts` if there is no file here,
    without those that are held out.

    `paths`: from `job_paths(job, job_path)`. Warns of rows whose answers cannot be scored: a plan can be made all the
    same. Raises InputError as `read_prompts` does for other faults, and if a step trains more prompts than there are,
    or `data.prompts` differs from the number of rows of the file.
    """
    stated = job.data.prompts
    if paths.data is None:
        assert stated is not None, "job_paths refuses a job without data"
        return stated - job.data.held_out_of(stated)
    rows, trained = _rows_to_plan(job, paths.data)
    if stated is not None and stated != rows:
        raise error_at(job_path, ("data", "prompts"), f"data.prompts: {other_count(job, rows)}")
    return trained


def rows_to_plan(job: Job, data: Rows) -> int:
    """The number of rows of the job's data file that are trained on, for planning; warns and raises as
    `prompts_to_plan`."""
    return _rows_to_plan(job, data)[1]


def _rows_to_plan(job: Job, data: Rows) -> tuple[int, int]:
    """(rows of the file, those of them that are trained on)."""
    rows, faults = read_rows(data, job.reward, "fast")
    broken = [fault for fault in faults if not fault.unscorable]
    if broken:
        raise _refusal(data, broken, len(rows) + len(faults))
    if faults:
        seen = min(FAST_ROWS, len(rows) + len(faults))
        warnings.warn(
            f"{faults[0].error(data)}; {len(faults)} of the first {seen} rows cannot be scored, which execute refuses: "
            "rlplan check JOB lists them",
            stacklevel=2,
        )
    found = len(rows) + len(faults)
    ids = [row.id for row in rows] + [fault.id for fault in faults if fault.id is not None]
    return found, _enough(job, data, found - len(held_out_ids(job.data, ids)))


def other_count(job: Job, rows: int) -> str:
    """The message for a `data.prompts` that differs from the number of `rows` of the data file."""
    return f"is {job.data.prompts}, and '{job.data.name}' has {rows} rows; write {rows}, or remove data.prompts"


_WHOLE_LINES = "; each line holds one whole JSON object"
_SHAPE = '{"id": …, "prompt": …, "answer": …}'
