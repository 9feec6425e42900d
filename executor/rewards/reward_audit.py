"""Does a job's reward pay what is right, and nothing else? Asked of the job's own rows.

| probe | the response | it must |
|---|---|---|
| `reference` | the row's own solution, or, of mathematics, its answer in a box | get the full reward |
| `blank` | nothing | not |
| `constant` | the same for every row | not |
| `other` | another row's reference, where that is no right answer to this row | not |

Full is 1 for `math` and `code`. What a function pays at most is not known: the most that a row's own reference gets,
and of rows without one the answer is tried as it is, in a box and in answer tags; if none of these ever gets more than
a blank, the function says nothing that can be audited here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ...plans.answers import AnswerError
from ...plans.answers.code_tests import code_tests
from ...plans.files.prompt_rows import Prompt, RowFault, read_rows
from ...plans.phrases.numbers import count
from ...plans.schema.job import Job, JobPaths, RewardSpec, scoring_paths
from ...plans.schema.reward_spec import RewardAudit
from .functions import ScorerConfig
from .local_scoring import prompt_text, scored
from .scoring import ScoringResult

Probe = Literal["reference", "blank", "constant", "other", "row"]

AUDITED = ("math", "code", "function")
"""Kinds of reward that compare a response with the row; a pattern or a length knows no row, a judge needs a model."""

Told = Callable[[str, float], None]
"""Called with what is being done, and the share that is done."""


@dataclass(frozen=True)
class Failure:
    """A row that fails a probe; `reward` is None where it is refused (`probe` is then `row`)."""

    id: str | None
    line: int
    probe: Probe
    reward: float | None
    why: str


@dataclass(frozen=True)
class Audited:
    """What an audit found.

    Attributes:
        audit: the counts.
        failed: the rows that fail, by line.
        zero: how many of the wrong responses got 0 or less.
        left_out: what was not audited, a line each.
    """

    audit: RewardAudit
    failed: Sequence[Failure]
    zero: int
    left_out: Sequence[str]


@dataclass(frozen=True, eq=False)
class _Question:
    row: Prompt
    probe: Probe
    response: str
    other: Prompt | None = None
    form: int = 0


def audit_job(job: Job, job_path: str | Path, most: int | None = None, told: Told = lambda text, done: None) -> Audited:
    """Audit the reward of a job on `most` rows of its data, evenly spread over the file; None: on all.

    Raises InputError as `read_rows` does, and for a reward that cannot be used.
    """
    paths = scoring_paths(job, job_path)
    assert paths.data is not None, "it is refused without data"
    # The reward reads the answers that it is asked about; all answers of a large file would take minutes.
    rows, faults = read_rows(paths.data, job.reward, "no", told)
    every: list[Prompt | RowFault] = sorted([*rows, *faults], key=lambda each: each.line)
    of = len(every)
    if most is not None and most < of:
        every = [every[(2 * place + 1) * of // (2 * most)] for place in range(most)]
    asked = [each for each in every if isinstance(each, Prompt)]
    failed = [Failure(each.id, each.line, "row", None, each.text) for each in every if isinstance(each, RowFault)]
    parts = [part for part in job.reward.parts if part.kind in AUDITED]
    left_out = [
        f"{part.label} is not audited: {'a model judges' if part.kind == 'judge' else 'it knows nothing of a row'}"
        for part in job.reward.parts if part not in parts
    ]  # fmt: skip
    counts: Counter[str] = Counter()
    for number, part in enumerate(parts):

        def share(text: str, done: float, number: int = number) -> None:
            told(text, (number + done) / len(parts))

        if not (own := [row for row in asked if part.scores(row.sources)]):
            continue
        of_part = _PartAudit(part, paths, own, [row for row in rows if part.scores(row.sources)], share)
        name = f"{part.label}: " if len(parts) > 1 else ""
        failed += [replace(failure, why=f"{name}{failure.why}") for failure in of_part.run()]
        left_out += [f"{part.label}{text}" for text in of_part.left_out]
        counts += of_part.counts
    counted = RewardAudit(
        rows=len(every),
        of=of,
        refused=len({failure.line for failure in failed if failure.probe == "row"}),
        **{key: counts[key] for key in ("references", "full", "wrong", "paid")},
    )
    return Audited(counted, sorted(failed, key=lambda failure: failure.line), counts["zero"], left_out)


class _PartAudit:
    """The audit of one part of a reward: `run` gives the failures; `counts` and `left_out` are filled on the way."""

    def __init__(
        self, part: RewardSpec, paths: JobPaths, asked: Sequence[Prompt], rows: Sequence[Prompt], told: Told
    ) -> None:
        self._part, self._asked, self._rows, self._told = part, asked, rows, told
        self._config = ScorerConfig.of_part(part, paths, part.deadline_s)
        self._place = {row.id: place for place, row in enumerate(rows)}
        self.counts: Counter[str] = Counter()
        self.left_out: list[str] = []

    def run(self) -> list[Failure]:
        """Ask and count; the rows that fail."""
        questions = [question for row in self._asked for question in self._questions(row)]
        pairs = list(zip(questions, self._answers(questions, self._told), strict=True))
        refused = {question.row.id: answer for question, answer in pairs if answer.refused}
        failures = [
            Failure(row.id, row.line, "row", None, _line(refused[row.id].detail))
            for row in self._asked if row.id in refused
        ]  # fmt: skip
        pairs = [(question, answer) for question, answer in pairs if question.row.id not in refused]
        lost = [answer for _, answer in pairs if answer.outcome == "infra_failed"]
        if lost:
            self.left_out.append(f": {count(len(lost), 'response')} could not be scored: {_line(lost[0].detail)}")
            pairs = [(question, answer) for question, answer in pairs if answer.outcome != "infra_failed"]
        own: dict[str, ScoringResult] = {}
        for question, answer in pairs:
            if question.probe == "reference" and answer.reward >= own.get(question.row.id, answer).reward:
                own[question.row.id] = answer
        wrong = [(question, answer) for question, answer in pairs if question.probe != "reference"]
        full = self._full(own, wrong)
        if full is None:
            self.left_out.append(" is not audited: it pays no answer as it is, in a box or in tags; write references")
            return failures
        tried = {question.row.id for question in questions if question.probe == "reference"}
        if without := len({row.id for row in self._asked} - tried - refused.keys()):
            self.left_out.append(f": {count(without, 'row')} of {len(self._asked)} without a reference solution to try")
        paid = [(question, answer) for question, answer in wrong if answer.reward >= full]
        careless = {question.row.id for question, _ in paid if question.other is None}
        others = [question for question, _ in paid if question.other is not None and question.row.id not in careless]
        equal = self._equal(others, full)
        wrong = [(question, answer) for question, answer in wrong if question not in equal]
        self.counts.update(
            references=len(own),
            full=sum(answer.reward >= full for answer in own.values()),
            wrong=len(wrong),
            paid=sum(answer.reward >= full for _, answer in wrong),
            zero=sum(answer.reward <= 0 for _, answer in wrong),
        )
        for row in self._asked:
            if row.id in own and (answer := own[row.id]).reward < full:
                why = _line(answer.detail) or f"its own answer gets {answer.reward:g}"
                failures.append(Failure(row.id, row.line, "reference", answer.reward, why))
        for question, answer in wrong:
            if answer.reward >= full:
                row, why = question.row, _PAID[question.probe].format(question)
                failures.append(Failure(row.id, row.line, question.probe, answer.reward, why))
        return failures

    def _full(self, own: Mapping[str, ScoringResult], wrong: Sequence[tuple[_Question, ScoringResult]]) -> float | None:
        """The full reward; None of a function that pays none of the answers that were guessed."""
        if self._part.kind != "function":
            return 1.0 - 1e-9
        blank = {question.row.id: answer.reward for question, answer in wrong if question.probe == "blank"}
        pays = any(answer.reward > blank.get(name, 0.0) for name, answer in own.items())
        if not pays and not any(row.reference for row in self._asked):
            return None
        return max((answer.reward for answer in own.values()), default=1.0)

    def _answers(self, questions: Sequence[_Question], told: Told) -> list[ScoringResult]:
        given = [(prompt_text(each.row), each.response, each.row.answer) for each in questions]
        answers: list[ScoringResult] = []
        for answer in scored(self._config, given):
            answers.append(answer)
            told(f"{self._part.label}: {len(answers)} of {len(given)} responses", len(answers) / len(given))
        return answers

    def _equal(self, paid: Sequence[_Question], full: float) -> set[_Question]:
        """Questions whose two rows ask for the same: each row pays the other's answer, and nothing is wrong.

        `paid`: questions whose response, another row's answer, got the full reward.
        """
        back = []
        for question in paid:
            forms = list(references(self._part, question.row)) or [""]
            back.append(_Question(question.other or question.row, "other", forms[min(question.form, len(forms) - 1)]))
        answers = self._answers(back, lambda text, done: None)
        return {question for question, answer in zip(paid, answers, strict=True) if answer.reward >= full}

    def _questions(self, row: Prompt) -> Iterator[_Question]:
        own = list(references(self._part, row))
        yield from (_Question(row, "reference", response) for response in own)
        yield _Question(row, "blank", "")
        if (constant := _constant(self._part, row)) is not None and constant not in own:
            yield _Question(row, "constant", constant)
        if (other := self._other(row, own)) is not None:
            for form, response in enumerate(references(self._part, other)):
                yield _Question(row, "other", response, other, form)

    def _other(self, row: Prompt, own: Sequence[str]) -> Prompt | None:
        """The next row behind `row` with another answer that can be tried."""
        start = self._place.get(row.id, 0)
        for step in range(1, min(len(self._rows), MOST_LOOKED_AT)):
            each = self._rows[(start + step) % len(self._rows)]
            response = next(references(self._part, each), None)
            if response is not None and response not in own and each.answer != row.answer:
                return each
        return None


MOST_LOOKED_AT = 100
"""So many rows behind a row are searched for one with another answer."""

_PAID: dict[Probe, str] = {
    "blank": "an empty response gets the full reward",
    "constant": "a response that is the same for every row gets the full reward",
    "other": "the answer of row '{0.other.id}' gets the full reward",
}


def _line(text: str) -> str:
    return " ".join(text.split())[:400]


# ---- the responses ----


def references(part: RewardSpec, row: Prompt) -> Iterator[str]:
    """Responses that should be right: the row's own solution. A row without one has, for mathematics, its answer in a
    box; for a function its answer as it is and in two frames, one of which at least should be paid."""
    if row.reference is not None:
        yield _fenced(row.reference) if part.kind == "code" else row.reference
    elif part.kind != "code" and (text := answer_text(row.answer)):
        framed = "\\boxed" in text or "####" in text
        if part.kind == "function":
            yield text
            yield f"<answer>{text}</answer>"
        if part.kind == "math" or not framed:
            yield text if framed else f"\\boxed{{{text}}}"


def answer_text(answer: Any) -> str:
    """A row's answer as a response would write it: text without dollar signs around it, numbers as JSON has them."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, dict):
        answer = next((answer[key] for key in ("ground_truth", "answer") if key in answer), answer)
    if not isinstance(answer, str):
        return "" if answer is None else json.dumps(answer, ensure_ascii=False)
    text = answer.strip()
    for sign in ("$$", "$"):
        if len(text) > 2 * len(sign) and text.startswith(sign) and text.endswith(sign):
            text = text[len(sign) : -len(sign)].strip()
    return text


def _fenced(source: str) -> str:
    return source if "```" in source or "~~~" in source else f"```python\n{source.strip()}\n```"


def _constant(part: RewardSpec, row: Prompt) -> str | None:
    """The same response for every row; None where a row's own answer is that."""
    if part.kind == "code":
        try:
            tests = code_tests(row.answer)
        except AnswerError:
            return None
        names = sorted(name for name in tests.needs if name.isidentifier())
        lines = ["print(0)"] if tests.reads_stdin else [f"def {name}(*given, **named):\n    return 0" for name in names]
        return _fenced("\n".join(lines or ["pass"]))
    return r"\boxed{7919}"
