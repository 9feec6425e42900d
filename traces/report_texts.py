"""What the responses of a run show: a few of its first, middle and last step, and hints that the reward is hacked.

A hint is no verdict: it says what to look at, with the responses that show it. It comes from samples that were trained
and drawn by lot (`KeptSample.kept`), so that no extreme stands for the run, and from the means of whole steps. Each
threshold has its reason beside it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from ..plans.phrases.numbers import percent
from ..plans.yaml.errors import InputError
from .kept_samples import KeptSample, clipped, in_order, kept_steps, read_samples, spread
from .trace_events import Step

MOST_FILES, MOST_ROWS = 120, 32
"""What is read of a run: so many of its files, evenly spread, and the first so many responses of each."""

RECENT, FEWEST = 64, 8
"""Hints look at the last fifth of the steps that are read, or further back until there are so many responses; groups of
fewer than `FEWEST` are not compared."""

WORDS, PASSAGE = 8, 40
"""Words of a repeated phrase: enough that prose and mathematics seldom say it twice by chance. Words of a long passage:
some 200 characters, longer than the phrases that answers to different prompts open and close with."""

LAST_CHARACTERS, FEWEST_PHRASES = 8000, 32
"""Of a response its end is looked at, where loops are; a shorter one than so many phrases repeats nothing."""

REPEATS, REPEATING_SHARE = 0.5, 0.25
"""A response repeats itself if half of its phrases stood in it before (in 19 of 20 files of prose at most 5 % of
the phrases do, of code 36 %). A hint needs a quarter of the best responses to do so, and twice the share of the others:
a model that loops whatever the reward has another fault."""

SHARED_SHARE = 0.5
"""Of the best responses that hold one passage; so common a passage that half as many of the others hold it, too, is a
form of answers and earns nothing."""

COLLAPSE, SURE = 0.5, 3.0
"""Lengths collapse if they are halved: a model that learns to be brief seldom loses as much while it still solves the
task. Change of reward and of length must exceed so many standard errors."""

LEAST_STEPS = 15
"""Steps of a kind of round below which nothing is said of its course: a fifth has three then."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")  # letters of scripts without spaces alone


class Hint(Struct, frozen=True, kw_only=True):
    """Something that a hacked reward would show. `name`: `repeats`, `shared_passage` or `shorter`; `examples`: the
    responses to look at; `passage`: what they share, empty for other hints."""

    name: str
    text: str
    examples: list[str]
    passage: str = ""


def reward_hints(by_step: Mapping[int, Sequence[KeptSample]], steps: Sequence[Step]) -> list[Hint]:
    """Hints from kept responses by step, in order, and from the run's steps; [] of a run that shows none."""
    trained = [
        [row for row in rows if row.fate == "trained" and row.kept == "drawn" and row.reward is not None]
        for rows in by_step.values()
    ]
    recent: list[KeptSample] = []
    read = 0
    while read < len(trained) and (len(recent) < RECENT or read < len(trained) // 5):
        read += 1
        recent = trained[-read] + recent
    best, others = _best_and_others(recent)
    first = [row for rows in trained[: len(trained) - read] for row in rows][: len(recent)]
    if len(others) < FEWEST:
        others = first  # nearly all have the best reward: what they were like before
    hints = [_repeats(best, others), _shared_passage(best, others)] if min(len(best), len(others)) >= FEWEST else []
    return [hint for hint in [*hints, *map(_shorter, _kinds(steps))] if hint is not None]


def _best_and_others(rows: Sequence[KeptSample]) -> tuple[list[KeptSample], list[KeptSample]]:
    """The best quarter by reward, with those that are as good, and the others."""
    rewards = sorted((row.reward or 0.0 for row in rows), reverse=True)
    least = rewards[(len(rewards) - 1) // 4] if rewards else 0.0
    best = [(row.reward or 0.0) >= least for row in rows]
    return list(compress(rows, best)), [row for row, among in zip(rows, best, strict=True) if not among]


def _words(text: str) -> list[re.Match[str]]:
    return list(_WORD.finditer(text[-LAST_CHARACTERS:]))


def repetition(text: str) -> float:
    """Share of a text's phrases of `WORDS` words that stood in it before, 0 to 1 (1 - distinct-n, arXiv 1510.03055); 0
    of a short text."""
    words = [match[0] for match in _words(text)]
    phrases = [tuple(words[place : place + WORDS]) for place in range(len(words) - WORDS + 1)]
    return 0.0 if len(phrases) < FEWEST_PHRASES else 1.0 - len(set(phrases)) / len(phrases)


def _repeats(best: Sequence[KeptSample], others: Sequence[KeptSample]) -> Hint | None:
    repeating = [row for row in best if repetition(row.response) >= REPEATS]
    share = len(repeating) / len(best)
    beside = sum(repetition(row.response) >= REPEATS for row in others) / len(others)
    if share < REPEATING_SHARE or share < 2 * beside:
        return None
    text = (
        f"{percent(share)} of the responses with the best rewards repeat themselves (half of their phrases of {WORDS} "
        f"words and more), {percent(beside)} of the others"
    )
    return Hint(name="repeats", text=text, examples=[row.name for row in repeating[:3]])


def _passages(row: KeptSample) -> dict[int, str]:
    """By hash, the passages of a response that its prompt does not hold."""
    words, asked = _words(row.response), _hashes([match[0] for match in _words(row.prompt_text)])
    hashes = _hashes([match[0] for match in words])
    text, last = row.response[-LAST_CHARACTERS:], PASSAGE - 1
    spans = {code: (words[place].start(), words[place + last].end()) for place, code in enumerate(hashes)}
    return {code: text[start:end] for code, (start, end) in spans.items() if code not in set(asked)}


def _hashes(words: Sequence[str]) -> list[int]:
    return [hash(tuple(words[place : place + PASSAGE])) for place in range(len(words) - PASSAGE + 1)]


def _shared_passage(best: Sequence[KeptSample], others: Sequence[KeptSample]) -> Hint | None:
    held = [(row, _passages(row)) for row in best]
    prompts: dict[int, set[str]] = {}
    for row, passages in held:
        for code in passages:
            prompts.setdefault(code, set()).add(row.prompt)
    # Samples of one prompt may well say the same: a passage counts by the prompts that it answers.
    answered = len({row.prompt for row in best})
    if not prompts:
        return None
    code = max(prompts, key=lambda each: len(prompts[each]))
    if len(prompts[code]) < max(3, SHARED_SHARE * answered):
        return None
    holders = [(row, passages[code]) for row, passages in held if code in passages]
    share = len(prompts[code]) / answered
    beside = len({row.prompt for row in others if code in _passages(row)}) / len({row.prompt for row in others})
    if beside > share / 2:
        return None
    text = (
        f"responses with the best rewards to {percent(share)} of the prompts hold the same passage of {PASSAGE} words; "
        f"of the others {percent(beside)} do"
    )
    return Hint(name="shared_passage", text=text, examples=[row.name for row, _ in holders[:3]], passage=holders[0][1])


def _kinds(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that trained, by kind of round: long rounds have other lengths than short ones."""
    kinds = dict.fromkeys(step.kind for step in steps)
    return [[step for step in steps if step.kind == kind and step.trained_samples] for kind in kinds]


def _shorter(steps: Sequence[Step]) -> Hint | None:
    """Rewards that rise while lengths collapse, of steps of one kind."""
    if len(steps) < LEAST_STEPS:
        return None
    first, last = steps[: len(steps) // 5], steps[-(len(steps) // 5) :]
    rewards = [[float(step.reward_mean) for step in part] for part in (first, last)]
    lengths = [[step.trained_tokens / step.trained_samples for step in part] for part in (first, last)]
    (reward, reward_after), (length, length_after) = (list(map(statistics.fmean, pair)) for pair in (rewards, lengths))
    falls = length_after <= COLLAPSE * length and length - length_after > SURE * _error(*lengths)
    if not falls or not reward_after - reward > SURE * _error(*rewards):
        return None
    text = (
        f"in {steps[0].kind} rounds the mean reward rose from {reward:.3f} to {reward_after:.3f} while the mean length "
        f"fell from {length:,.0f} to {length_after:,.0f} tokens (first and last fifth of the steps)"
    )
    return Hint(name="shorter", text=text, examples=[f"step {steps[0].step}", f"step {steps[-1].step}"])


def _error(first: Sequence[float], last: Sequence[float]) -> float:
    """Standard error of the difference of two means."""
    return math.sqrt(sum(statistics.variance(values) / len(values) for values in (first, last)))


def overview(run_dir: Path, faults: list[InputError]) -> dict[int, list[KeptSample]]:
    """Responses of a run by step, at most `MOST_ROWS` of each of `MOST_FILES` steps; files that cannot be read are left
    out, and their errors go to `faults`."""
    files, rows = kept_steps(run_dir), {}
    for step in spread(list(files), MOST_FILES):
        try:
            rows[step] = list(read_samples(files[step], MOST_ROWS))
        except InputError as error:
            faults.append(error)
    return rows


_PAGE_SAMPLES, _PAGE_CHARACTERS = 4, 6000


def texts_report(run_dir: Path, steps: Sequence[Step]) -> dict[str, Any] | None:
    """Of the first, middle and last step the best, worst and longest responses, a prompt that came in most steps beside
    itself, and what hints at reward hacking; None if the run kept no responses."""
    faults: list[InputError] = []
    by_step = {step: rows for step, rows in overview(run_dir, faults).items() if rows}
    if not by_step and not faults:
        return None
    again = most_seen_prompt(by_step)
    return {
        "steps": len(kept_steps(run_dir)),
        "unreadable": [str(fault) for fault in faults],
        "hints": [structs.asdict(hint) for hint in reward_hints(by_step, steps)],
        "columns": [_column(by_step[step]) for step in spread(list(by_step), 3)],
        "prompt": None if again is None else _prompt_columns(by_step, again),
    }


def most_seen_prompt(by_step: Mapping[int, Sequence[KeptSample]]) -> str | None:
    """The prompt that was trained, and kept, in most steps; None if none was in two."""
    seen: dict[str, int] = {}
    for rows in by_step.values():
        for prompt in dict.fromkeys(row.prompt for row in rows if row.fate == "trained"):
            seen[prompt] = seen.get(prompt, 0) + 1
    best = max(seen, key=seen.__getitem__, default=None)
    return best if best is not None and seen[best] > 1 else None


def _column(rows: Sequence[KeptSample]) -> dict[str, Any]:
    ends = [row for order in ("best", "worst", "longest") for row in in_order(rows, order)[:1]]
    shown = list({(row.draw, row.sample): row for row in [*ends, *rows]}.values())[:_PAGE_SAMPLES]
    return {"step": rows[0].step, "kind": rows[0].kind, "samples": [_shown(row) for row in shown]}


def _prompt_columns(by_step: Mapping[int, Sequence[KeptSample]], prompt: str) -> dict[str, Any]:
    of_prompt = {step: [row for row in rows if row.prompt == prompt] for step, rows in by_step.items()}
    steps = spread([step for step, rows in of_prompt.items() if rows], 3)
    return {
        "prompt": prompt,
        "text": of_prompt[steps[0]][0].prompt_text[:_PAGE_CHARACTERS],
        "columns": [_column(of_prompt[step]) for step in steps],
    }


def _shown(row: KeptSample) -> dict[str, Any]:
    """A response for a page: long texts lose their middle."""
    shown = {key: value for key, value in structs.asdict(row).items() if key not in ("reward_parts", "kind")}
    parts = {name: part.value for name, part in row.reward_parts.items()}
    texts = {key: clipped(shown[key], _PAGE_CHARACTERS) for key in ("response", "prompt_text")}
    return {**shown, **texts, "reward_parts": parts}
