"""Which model a name means: a table by exact names of repositories, then rules over the whole name, then a guess.

Rules: a name means a row of the table when it has the row's words (`qwen 2.5`, `deepseek r 1`) one behind the other,
and its sizes; of several rows those with the most words count. So `DeepSeek-R1-0528-Qwen3-8B` is no DeepSeek-R1, which
has 671B parameters, but a Qwen3-8B. What leaves a doubt is a guess and is marked so: two rows of different shapes, a
size that no row of the family has, or words that name another shape (`vl`, `pruned`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from .public_models import ARCHITECTURES, FAMILIES, Architecture, moe, word_set

_POINT = re.compile(r"(?<=\d)[_p](?=\d+(?![\d.]*[bm](?![a-z0-9])))|(?<=[-_][01])[_p](?=\db)")
"""What stands for a point: in `Llama-3_1`, `qwen2p5` and `qwen2_5-1_5b`; not before the size in `qwen3_8b`."""
_WORD = re.compile(
    r"\d+x\d+(?:\.\d+)?b(?![a-z0-9])|[ae]?\d+(?:\.\d+)?[bm](?![a-z0-9])|\d+(?:\.\d+)*(?:[a-z](?![a-z]))?|[a-z]+"
)
_SIZE = re.compile(r"(?:\d+x)?[ae]?\d+(?:\.\d+)?[bm]")
_SAME_SIZE = 0.1
"""A size in a name may differ by this share from the parameters of a row whose own name has no size."""

_OTHER_SHAPE = word_set(
    "air audio depth distill distilled draft eagle flash lite mamba mini minitron mm moe multimodal nano omni "
    "pruned reap small speculator tiny upscaled vision vl width"
)
"""Words that say that a model has another shape than the rest of its name tells."""
_SAME_SHAPE = word_set(
    "awq base bf chat code exp fp ft gguf gptq hf instruct int it meta mxfp nvfp plus preview pt reasoning "
    "sft speciale terminus thinking v zero"
)
"""Words that change no shape. In a name without a size any other word leaves a doubt."""

_HYBRID = re.compile(
    r"qwen3[-_]next|qwen3\.[5-9]|nemotron-(?:h\b|3(?!\d)|nano-\d+b-v2|nano-v2)|jamba|mamba|falcon-h1|granite-4|kimi-linear|"
    r"minimax-(?:m1|text)|ring-.*linear|ling-.*linear|rwkv|zamba|bamba|lfm2|recurrentgemma|gemma-3n|gemma-4|deepseek-v4|"
    r"kimi-k3|minimax-m3|nemotron-(?:super|ultra|51b)|openelm|mimo-v2|^step-?3"
)
"""Models whose layers differ in a way that no shape of the table has: linear attention, state spaces, pruned blocks."""


def architecture_of(model: str) -> Architecture | None:
    """The shape of a model by its hub id or by the last part of a path, marked `guessed` where its name leaves a doubt;
    None where the name tells nothing. Reads no file."""
    return _architecture_of(plain_name(model))


def is_hybrid(model: str) -> bool:
    """Whether a name is of a model whose layers differ, so that no shape is told or guessed."""
    return _HYBRID.search(plain_name(model)) is not None


def plain_name(model: str) -> str:
    """The last part of a hub id or path, in small letters."""
    return model.lower().rstrip("/").split("/")[-1]


@cache
def _architecture_of(name: str) -> Architecture | None:
    if is_hybrid(name):
        return None
    return _BY_NAME.get(name) or _by_rules(words := _words(name)) or _by_family(words) or guess(name)


def _by_rules(words: tuple[str, ...]) -> Architecture | None:
    sizes = _sizes(words)
    found = [(len(own), own, row) for own, row in _ROWS if _has(words, own) and _fits(sizes, own, row)]
    most = max((count for count, *_ in found), default=0)
    rows = [(own, row) for count, own, row in found if count == most]
    if not rows:
        return None
    own, row = rows[0]
    more = {word for word in words if word not in own and word not in sizes}
    if _sizes(own):
        unsure = not sizes <= _sizes(own) or bool(more & _OTHER_SHAPE - {"distill", "distilled"})
    elif more & _OTHER_SHAPE:
        return None
    else:
        unsure = not all(word in _SAME_SHAPE or re.fullmatch(r"\d{4,}|\d+k|4|8|16", word) for word in more)
    unsure |= _other_family_before_size(words, own)
    alike = [own for _, own, other in found if other.is_shaped_as(row)]
    unsure |= all(_is_other_version(words, own) for own in alike)
    unsure |= not all(other.is_shaped_as(row) for _, other in rows)
    return replace(row, guessed=True) if unsure else row


def _by_family(words: tuple[str, ...]) -> Architecture | None:
    """The first row whose name begins with a word of the name and that has its size: a guess."""
    sizes = _sizes(words)
    rows = (row for own, row in _ROWS if sizes and sizes <= _sizes(own) and (own[0] in words or "x" in min(sizes)))
    found = next(rows, None)
    return None if found is None else replace(found, guessed=True)


def _fits(sizes: frozenset[str], own: tuple[str, ...], row: Architecture) -> bool:
    """Whether the sizes in a name are those of a row: its name's, or its parameters where that has none."""
    if _sizes(own):
        return _sizes(own) <= sizes
    return all(abs(_billions(size) / (row.parameters / 1e9) - 1) <= _SAME_SIZE for size in sizes if size[0] != "a")


def _has(words: tuple[str, ...], own: tuple[str, ...]) -> bool:
    """Whether the words of a row, but for sizes, are in a name, those of each stretch one behind the other."""
    return all(_end(words, run) for run in _stretches(own))


def _is_other_version(words: tuple[str, ...], own: tuple[str, ...]) -> bool:
    """Whether a number that is no date follows a stretch of a row's words: `ministral 3 8b`."""
    ends = (_end(words, run) for run in _stretches(own))
    return any(end < len(words) and re.fullmatch(r"\d{1,3}(\.\d+)*", words[end]) is not None for end in ends)


def _other_family_before_size(words: tuple[str, ...], own: tuple[str, ...]) -> bool:
    """Whether another family stands between a row's words and its size: `llama-qwen-7b-mix`."""
    begin = _end(words, _stretches(own)[0])
    size = next((at for at in range(begin, len(words)) if words[at] in _sizes(own)), begin)
    return any(word in _FAMILY_WORDS and word not in own for word in words[begin:size])


def _end(words: tuple[str, ...], run: tuple[str, ...]) -> int:
    """The index behind a stretch of words in a name; 0: the name does not hold it."""
    last = len(words) - len(run)
    return next((at + len(run) for at in range(last + 1) if words[at : at + len(run)] == run), 0)


def _stretches(own: tuple[str, ...]) -> list[tuple[str, ...]]:
    runs: list[tuple[str, ...]] = [()]
    for word in own:
        runs = [*runs, ()] if _SIZE.fullmatch(word) else [*runs[:-1], (*runs[-1], word)]
    return [run for run in runs if run]


def _words(name: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(_POINT.sub(".", name)))


def _sizes(words: tuple[str, ...]) -> frozenset[str]:
    """Sizes among words: `7b`, `a3b`, `8x7b`, `270m`; a few millions are a length of context (`1m`)."""
    return frozenset(word for word in words if _SIZE.fullmatch(word) and (word[-1] == "b" or len(word) > 3))


def _billions(size: str) -> float:
    count = 1.0
    for factor in size.lstrip("ae")[:-1].split("x"):
        count *= float(factor)
    return count / (1 if size[-1] == "b" else 1000)


_BY_NAME = {row.name.lower(): row for row in ARCHITECTURES}
_FAMILY_WORDS = frozenset(re.findall(r"\b[a-z]+", " ".join(FAMILIES.values())))
_ROWS = tuple((_words(row.name.lower()), row) for row in ARCHITECTURES)


def guess(name: str) -> Architecture | None:
    """A usual shape of the size in a name: depth and width of the dense models in the table, by size."""
    sizes = _sizes(_words(name))
    totals = [_billions(size) for size in sizes if size[0].isdigit() and "x" not in size]
    if not totals or min(totals) <= 0:
        return None
    billions, active = max(totals), min((_billions(size) for size in sizes if size[0] == "a"), default=0.0)
    sparse = 0.0 < active < billions
    width_of = active if sparse else billions
    # Dense models of the table follow hidden ~ 2000 B^0.33 and layers ~ 18 B^0.33 (B: billions of parameters).
    hidden = max(512, round(2000 * width_of**0.33 / 512) * 512)
    layers = max(12, round(18 * (billions if not sparse else billions**0.6) ** 0.33))
    heads, kv_heads, head_dim, vocab = max(8, hidden // 128), 8, 128, 150_000
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    rest = max(0.1, 1e9 * billions - 2 * vocab * hidden - layers * attention) / layers
    if not sparse:
        width = max(hidden, round(rest / (3 * hidden)))
        return Architecture(name, layers, hidden, heads, kv_heads, head_dim, vocab, width, guessed=True)
    return moe(
        name, (layers, hidden, heads, kv_heads, head_dim, vocab), (128, 8, max(64, round(rest / (128 * 3 * hidden)))),
        guessed=True,
    )  # fmt: skip
