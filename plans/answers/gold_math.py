"""A row's answer of kind `math`: read once, by type, before anything is trained.

What a response says is read by the same rules (`typed`), so that a gold answer and a response differ in value only.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from . import AnswerError
from .math_numbers import Node, Unread
from .math_reading import MOST_SIGNS, read
from .math_text import boxes, one_spelling, words_of
from .units import split_unit

MOST_WORDS = 12
"""Words of a text that is still compared as text; longer ones are prose, which no two writers write alike."""
LONGEST_LATEX = 300
"""Signs of an expression that math-verify is asked to read: its grammar takes seconds for longer ones."""
_NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty"""
_NUMBERS = {word: value for value, word in enumerate(_NUMBER_WORDS.split())}
_MISSING = {"null", "nan", "n/a", "proof", "notfound", "not found", "see solution", "..."}
_LABEL = re.compile(
    r"^(?:(?:option|choice|answer|the)\s+)*\\?(?:text\s*\{\s*)?(?:[(\[]\s*([A-Z])\s*[)\]]|([A-Z])\s*[).:](?=\s|\}|\\|$)|([A-Z])\s*\}(?=\s*\S))"
    r"\s*[.:)]?\s*\}?\s*(.*)$"
)
_LETTER = re.compile(r"(?:(?:option|choice|answer)\s+)?[(\[]?\s*([A-Za-z])\s*[)\].:]?", re.IGNORECASE)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_MATHEMATICS = re.compile(r"\\[a-zA-Z]+|[=<>^_+*|]")
_WORDY = re.compile(r"[^\W\d_]{2}|\d\s*[ap]\.\s?m\b")


@dataclass(frozen=True)
class Gold:
    """An answer by its type.

    Attributes:
        kind: `number`, `choice`, `text`, `expression`, or what the tree's `op` says of a structure: `list`, `set`,
            `tuple`, `interval`, `union`, `relation`, `matrix`, `based`; `latex` is read by math-verify alone; `unread`
            is such an answer where math-verify is not installed: nothing can be said of it here.
        text: what was read, in one spelling.
        node: its tree; None of `choice`, `text`, `latex` and `unread`.
        unit: as written behind (or, of money, before) the number; "" without.
        letter: of a choice, in capitals.
        words: of a choice or a text: in lower case, without punctuation; "" of a choice without words.
    """

    kind: str
    text: str
    node: Node | None = None
    unit: str = ""
    letter: str = ""
    words: str = ""


def gold_of(answer: Any, whole: bool = True) -> Gold:
    """A row's answer by its type. Raises `AnswerError` for what no rule reads. `whole`: math-verify, which takes a
    second to begin, is asked for what no other rule reads; else such an answer is `unread`."""
    return _gold(_text_of(answer), whole)


def _text_of(answer: Any) -> str:
    """The answer as text: JSON numbers written out, a list of one as its element."""
    while isinstance(answer, list | tuple):
        if len(answer) != 1:
            raise AnswerError(
                f"the answer is a list of {len(answer)}, which may be alternatives, a set or a tuple; write one text:"
                ' "3, 5" or "\\\\{3, 5\\\\}" for a set, "(3, 5)" for a tuple'
            )
        answer = answer[0]
    if isinstance(answer, bool):
        return "true" if answer else "false"
    if isinstance(answer, float):
        if not math.isfinite(answer):
            raise AnswerError(
                f'the answer is {answer}, which is no number; write it as text ("\\\\infty") or drop the row'
            )
        return repr(answer)
    if isinstance(answer, int):
        return str(answer)
    if not isinstance(answer, str):
        raise AnswerError(f"the answer is {_named(answer)}; write a number or text")
    return answer


def _named(answer: Any) -> str:
    return "null" if answer is None else "an object" if isinstance(answer, dict) else f"of type {type(answer).__name__}"


@functools.lru_cache(maxsize=1 << 16)
def _gold(text: str, whole: bool) -> Gold:
    if not text.strip():
        raise AnswerError("the answer is blank; write it or drop the row")
    final = _final(text)
    if words_of(final) in _MISSING or not words_of(final) or final.strip() in ("None", "-"):
        raise AnswerError(f"the answer {text.strip()[:40]!r} stands for one that is missing; write it or drop the row")
    found = typed(final)
    if found is None or (found.kind == "latex" and whole and not _math_verify_reads(found.text)):
        raise AnswerError(
            f"the answer {text.strip()[:80]!r} is no number, choice, short text, expression or set that can be read;"
            " write the final answer alone, or use another kind of reward"
        )
    return found if found.kind != "latex" or (whole and _installed()) else Gold("unread", found.text)


def _final(text: str) -> str:
    """The final answer of a worked solution: what its box holds, or what stands behind GSM8K's last ####."""
    found, is_open = boxes(text)
    if is_open:
        raise AnswerError("the answer has a box that is not closed; write the final answer alone")
    if found:
        if len({one_spelling(each) for each in found}) > 1:
            raise AnswerError(f"the answer has {len(found)} boxes that differ; write the final answer alone")
        return found[-1]
    if "####" in text:
        return text.rpartition("####")[2]
    tags = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if len(tags) == 1:
        return str(tags[0])
    said = re.search(r"(?is).*\b(?:final answer|answer)\s*(?:is|:|=)\s*(.+)$", text)
    return said[1] if said else text


def typed(text: str, attached: bool = False) -> Gold | None:
    """The answer by its type, or None if no rule reads it; `latex` if math-verify must say.

    Args:
        attached: a letter right behind a number is a unit (`5m`), as it may be in a response to a number.
    """
    spelled = one_spelling(text) if len(text) <= 4 * MOST_SIGNS else ""
    if not spelled or len(spelled) > MOST_SIGNS:
        return None
    plain = words_of(spelled)
    if spelled.replace("\\text", "").strip("{}() ").lower() in ("true", "false"):
        return Gold("text", spelled, words=plain)
    if plain in _NUMBERS:
        return Gold("number", spelled, Node("num", (Fraction(_NUMBERS[plain]), None)), words=plain)
    if re.fullmatch(r"\d{1,2}:\d\d\s*[ap]\.?\s?m\.?\s*", _TEXT.sub(r" \1 ", spelled), re.IGNORECASE):
        return Gold("text", spelled, words=plain)
    if choice := _choice(spelled):
        return choice
    if (found := _mathematics(spelled, attached)) is not None:
        return found
    wordy = _TEXT.sub(r" \1 ", spelled)
    if _WORDY.search(wordy) and not _MATHEMATICS.search(wordy):
        return Gold("text", spelled, words=plain) if len(plain.split()) <= MOST_WORDS else None
    return Gold("latex", spelled) if re.search(r"\\|[=<>^_+*/|]", spelled) and re.search(r"\w", spelled) else None


def _choice(spelled: str) -> Gold | None:
    if letter := _LETTER.fullmatch(_TEXT.sub(r"\1", spelled).strip()):
        bare = letter[0].strip() == letter[1]
        if not bare or letter[1].isupper():
            return Gold("choice", spelled, letter=letter[1].upper())
    if labelled := _LABEL.match(spelled):
        letter_of = labelled[1] or labelled[2] or labelled[3]
        rest = labelled[4].strip()
        # f(B) or P(A) are mathematics; a label stands before words or a value.
        if rest and not re.match(
            r"(?:\\text\s*\{)?\s*(?:,|;|&|and\b|or\b|\(?[A-J]\))|[=+*/^_-]|\\(?:cdot|times|cup|cap)", rest
        ):
            return Gold("choice", one_spelling(rest), letter=letter_of, words=words_of(rest))
    return None


def _mathematics(spelled: str, attached: bool) -> Gold | None:
    """Numbers with units and all that the grammar reads; None for words."""
    is_words = re.fullmatch(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*", spelled) is not None
    is_difference = re.fullmatch(r"[a-zA-Z]{1,2}(?:\s?-\s?[a-zA-Z]{1,2})+", spelled) is not None  # ad - bc
    if is_words and not is_difference and spelled.lower() not in ("pi", "infinity", "oo", "inf"):
        return None
    if whole := re.fullmatch(r"\(([^(),]*(?:\([^(),]*\)[^(),]*)*)\)", spelled):
        spelled = whole[1].strip()
    body, unit = split_unit(spelled, attached)
    for text, of in ((body, unit), (spelled, "")) if unit else ((spelled, ""),):
        try:
            node = read(text)
        except (Unread, RecursionError, ValueError, OverflowError):
            continue
        return Gold(_kind(node), text, node, of)
    return None


def _kind(node: Node) -> str:
    if node.op in ("list", "set", "tuple", "interval", "union", "matrix", "based"):
        return node.op
    if node.op in ("rel", "chain"):
        return "relation"
    return "number" if value(node) is not None else "expression"


def value(node: Node) -> Fraction | None:
    """The exact value of arithmetic with whole powers; None for all else, and for numbers beyond 10,000 digits."""
    op, args = node
    if op == "num":
        return args[0] if isinstance(args[0], Fraction) else None
    if op == "call" and args[0] == "binom":
        op, args = "binom", args[1:]
    if op not in ("add", "mul", "div", "ratio", "neg", "pow", "fact", "binom"):
        return None
    parts = [value(each) for each in args]
    if any(part is None for part in parts):
        return None
    exact = [part for part in parts if part is not None]
    if op == "add":
        return sum(exact, Fraction(0))
    if op == "mul":
        return math.prod(exact, start=Fraction(1))
    if op == "neg":
        return -exact[0]
    if op in ("fact", "binom"):
        whole = all(part.denominator == 1 and 0 <= part <= 3000 for part in exact)
        return Fraction((math.factorial if op == "fact" else math.comb)(*map(int, exact))) if whole else None
    left, right = exact
    if op == "pow":
        size = max(left.numerator.bit_length(), left.denominator.bit_length())
        if right.denominator != 1 or abs(right) * size > 30_000 or (left == 0 and right <= 0):
            return None
        return left ** int(right)
    return left / right if right else None


def _installed() -> bool:
    return importlib.util.find_spec("math_verify") is not None


def _math_verify_reads(text: str) -> bool:
    """Whether math-verify makes more than letters of a text; True where it is not installed."""
    if not _installed():
        return True
    return len(text) <= LONGEST_LATEX and bool(parsed(text))


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> tuple[Any, ...]:
    """What math-verify reads of one LaTeX expression: SymPy objects; () if nothing.

    Its timeouts are off: they use SIGALRM as the deadline of a reward worker does, and the two would disarm each other.
    """
    import logging

    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # Its own rule for units takes the letters of 2ab for one.
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    whole = LatexExtractionConfig(normalization_config=spelling)
    try:
        found = parse(f"${text}$", [whole], fallback_mode="no_fallback", parsing_timeout=None)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - its grammar raises what it likes on text that it does not know
        return ()
    return tuple(found)
