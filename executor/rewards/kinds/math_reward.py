"""Reward 1 if the response's final answer equals the row's answer as mathematics, else 0.

The row's answer is read by type (`plans.answers.gold_math`), the response's is found here, read by the
same rules, and compared by type (`math_compare`). Numbers, choices and text never touch SymPy.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import math_verify  # noqa: F401 - a run without it must be refused at its start, and not at the first expression

from ....plans.answers import AnswerError
from ....plans.answers.gold_math import Gold, gold_of, typed, value
from ....plans.answers.math_text import MAGNITUDES, TAGS, boxes, one_spelling
from ..sandbox.verdict import PolicyError, RowError, Verdict
from .math_compare import SETS_IN_WORDS, same
from .math_numeric import symbols

# What a response gives as its answer: its last box, else its last answer tag, else what stands behind its last "the
# answer is" (in the languages of the common models), else what its last line ends in.
#
# Exactly one place counts, and thinking does not where something follows it: a response that names several answers is
# judged by the last one, never by the best.

_THOUGHT_ENDS = re.compile(
    r"</(?:think|thinking|thought|reasoning|seed:think)>|◁/think▷|\[/THINK\]|<\|channel\|>final<\|message\|>"
)
_THOUGHT = re.compile(r"</?(?:think|thinking|thought|reasoning|seed:think)>")
_CONTROL = re.compile(r"<\|[a-zA-Z_]+\|>|</?s>|<eos>|<end_of_turn>|<pad>|<｜[^｜<>]*｜>")
_TAG = re.compile(r"<(answer|final_answer|solution)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_MARKUP = re.compile(rf"(?<![a-zA-Z0-9)])\*\*|\*\*(?![a-zA-Z0-9(])|__|<<[^<>\n]*>>|{TAGS.pattern}", re.IGNORECASE)
_IS = r"[^\S\n]*(?:\([^()\n]*\)[^\S\n]*)?(?:%s|[:：=])"
_ANNOUNCED = (
    (
        "ans",
        r"\b(?:answers?|ans)\b(?:[^.\n:=$\\]{0,60}?\b(?:is|are|equals|was|be)\b(?!\s+(?:not|wrong|correct|right)\b)|\s*[:=])",
    ),
    ("answer", r"\bfinal answer\b[^\S\n]*[:：.]?[^\S\n]*(?=\n)|^#+[^\S\n]*answer[^\S\n]*(?=\n)"),
    (
        "答案 正解 解答 答え 結果",
        r"(?:答案|正解|解答|答え|結果)[^。：:是为為は不]{0,12}(?:应该是|应为|應為|是|为|為|は|：|:)",
    ),
    ("答", r"(?:^|[^\w\s])\s*答[：:]"),
    ("选", r"(?:故|应|因此|所以|正确)?选(?:择|项)?\s*(?:是|为|[:：])?\s*(?=[(（]?[A-J])"),
    ("respuesta", r"\brespuestas?\b(?:\s+(?:final|correcta))?" + _IS % r"es|son|sería"),
    ("resposta", r"\brespostas?\b(?:\s+(?:final|correta))?" + _IS % r"é|são|seria"),
    ("risposta", r"\brisposta\b(?:\s+(?:finale|corretta))?" + _IS % r"è|sono"),
    ("réponse", r"\bréponses?\b(?:\s+(?:finale|correcte))?" + _IS % r"est|sont|serait"),
    (
        "antwort lösung ergebnis",
        r"(?:antwort|lösung|ergebnis)\b(?:\s+(?:ist|lautet|beträgt)(?:\s+also|\s+daher)?|\s*[:=])",
    ),
    ("ответ", r"\b(?:окончательный |правильный )?ответ(?:ом)?\b" + _IS % r"является|равен|—|–|-|это"),
    ("답", r"(?:최종\s*)?(?:정답|답안|답)(?:은|는|이|:|：)"),
    ("đáp câu kết", r"(?:đáp án|đáp số|câu trả lời|kết quả)(?:\s+(?:cuối cùng|đúng))?" + _IS % r"là"),
    ("jawaban", r"\bjawaban(?:nya)?\b(?:\s+(?:akhir|akhirnya|yang benar))?" + _IS % r"adalah|ialah"),
    ("odpowied", r"\b(?:odpowiedź|odpowiedzią)\b(?:\s+końcowa)?" + _IS % r"to|brzmi|jest"),
    ("antwoord", r"\bantwoord\b" + _IS % r"is"),
    ("cevap", r"\bcevap\b(?:\s*[:=]|\s)"),
    ("الإجابة الجواب", r"(?:الإجابة|الجواب)(?:\s+(?:النهائية|الصحيحة|النهائي))?" + _IS % r"هي|هو"),
    ("उत्तर", r"(?:अंतिम\s+)?उत्तर(?:\s+है)?" + _IS % r"है|,"),
    ("คำตอบ", r"คำตอบ(?:สุดท้าย)?\s*(?:คือ|[:：])"),
)
_PHRASES = tuple((keys.split(), re.compile(pattern, re.IGNORECASE | re.MULTILINE)) for keys, pattern in _ANNOUNCED)
"""By words in lower case of which a line must hold one: what announces an answer."""
_JSON = re.compile(r'"(?:final_)?answer"\s*:\s*("?)(.{0,200}?)\1\s*(?=[,}\n])', re.IGNORECASE)
_MINUS = re.compile(
    r"(?:\\text\s*\{\s*(?:negative|minus)\s*\}|\b(?:negative|(?<![\d$)}] )(?<!\b\w )minus)\s)\s*(?=[$\\(]*\d)",
    re.IGNORECASE,
)
_HASHES = re.compile(r"\s*####\s*(.+?)\s*$")
_SENTENCE_END = re.compile(
    r"(?<=[^\s\d.])\.(?=\s|$)|(?<=\d)\.(?=\s+[^\d\s]|\s*$)|[。；！？]|[?](?=\s|$)"
    r"|,\s+(?:where|when|if|with|for|namely)\b"
    r"|,?\s+(?:because|since|which|whereas|while|so that|as (?=\w+ )|weil|porque|car|ведь)\b"
    r"|(?:,\s*|\s+)so\s"
)
_ENDINGS = re.compile(
    r"(?:です|である|となります|になります|だ|입니다|이다|이에요|예요|है|ครับ|ค่ะ|olur|dir|dır|'dir|'dır)?\s*[.。।!]?\s*$"
)
_MATH = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\\w])\$(?!\s)([^$\n]+?)(?<![\\\s])\$(?!\d)", re.DOTALL
)
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])[-+−]?(?:\d{1,3}(?:(?:[,\u202f\u00a0]|\{,\}|\\,)\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+(?![\d/]))?(?:[eE][+-]?\d+)?(?:\s*%)?"
    rf"(?:\s*(?:{'|'.join(MAGNITUDES)})\b)?(?![\d])"
)
_CHOICE = re.compile(
    r"\W*(?:(?:option|choice|answer|letter|la|opción|letra|选项|选)\s*)*[(（]?\s*([A-J])\s*[)）]?(?![A-Za-z0-9_'’-]|\s*[=+*^])",
    re.IGNORECASE,
)
_OPERATOR_BEFORE = re.compile(r"(?:[+*/^×·÷_{<>≤≥√(]|\\[a-zA-Z]+|(?<![A-Za-z][A-Za-z] )[-−])\s*$")
_OPERATOR_BEHIND = re.compile(
    r"\s*(?:[+*^×·÷<>≤≥√_!}]|/|\\(?!text|,|\)|\]|%|\$)|[-−]\s*(?:\d|[a-z]\b|\\))|[A-Za-z](?![A-Za-z])|\("
    r"|\|\s*[a-z\d]|\s+(?:times|plus|minus|divided by|multiplied by)\s+[\d$]|\s+or (?:more|less|fewer)\b"
)
"""What makes a number a part of an expression that is not read as a whole."""
_NAMED = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice)\s+\(?([A-J])\b|(?<![A-Za-z])\(([A-J])\))(?!\)?\s+(?:is|are)\s+(?:not|incorrect|wrong|false)\b)"
)
_CHOSEN = re.compile(
    r"(?:^|\s)\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right|best|answer)\b"
    r"|^(?:[Tt]herefore|[Tt]hus|[Hh]ence|[Ss]o)[,:]?\s+\(?([A-J])\)?[.!]?$"
)
_OTHER_CHOICE = re.compile(
    r"\s*[)）]?\s*(?:(?:[,;、/&|]|(?:and|or|和|或)\b)\s*(?:and\s+|or\s+)?[(（]?|[(（])[A-J](?![A-Za-z])"
)
_PROSE = re.compile(r"\b(?:so|we|is|it|the|and|of|to|in|as|[A-Za-z]{4,})\b", re.IGNORECASE)
_NOT_PROSE = re.compile(r"\\[a-zA-Z]+(?:\{[a-z]+\})?|_\s*\{[^{}]*\}")
_DENIED = re.compile(
    r"(?:\b(?:not|isn't|wasn't|aren't|(?:more|less|fewer|greater) than|no es|nicht|n'est pas|não é|не)\s+|不是\s*)"
    r"(?:\$[^$]*\$|\(?[A-J]\)?(?=\W|$)|[-−(]?\d\S*)"
)
_REMARK = re.compile(r"\s\([^()]*[A-Za-z]{2}[^()]*\)\s*[.。]?\s*$")
_RIVAL = re.compile(
    r"[\s,;/$\\()]*(?:or|and|to|或|和|oder|und|ou|et|o|u|y|e|или|и)?(?:\s+(?:maybe|perhaps|possibly|else))?[\s,;/$\\()]*",
    re.IGNORECASE,
)
"""What stands between two numbers that are both given as the answer."""
_SAID = re.compile(r".*(?:\b(?:is|are|equals|becomes|get|gives)\b|[:：])\s+(.{1,200}?)[.。!]?\s*$")
_LONGEST_LINE = 2000
"""Signs of a line that are looked at."""
_RULE = re.compile(r"^[\s\-*_=#`~$\\\[\]>.]*$")


class Extracted(NamedTuple):
    """Where the answer stands in a response, and its text; "" if there is none."""

    place: str
    text: str


def without_thinking(response: str) -> str:
    """The response behind its last thought, if anything stands there, without control tokens of chat templates."""
    ends = list(_THOUGHT_ENDS.finditer(response))
    if ends and _CONTROL.sub("", response[ends[-1].end() :]).strip():
        response = response[ends[-1].end() :]
    return _CONTROL.sub("", _THOUGHT.sub("", response))


def answer_of_response(response: str, gold: Gold) -> Extracted:
    """The answer that a response gives to a row; of a sentence the part that can be of the type of `gold`."""
    text = _MINUS.sub("-", without_thinking(response))
    found, is_open = boxes(text)
    if found:
        return Extracted("the last box", _part(found[-1], gold, only=True))
    if is_open:
        return Extracted("a box that is not closed", "")
    if tags := _TAG.findall(text):
        inner = tags[-1][1]
        said = _said(inner)
        return Extracted(
            "the last answer tag", _part(inner if said is None or _reads(inner, gold) else said, gold, only=True)
        )
    said = _said(text)
    if said is not None and (part := _part(said, gold)):
        return Extracted("the last 'answer is'", part)
    return Extracted("the last line", _from_last_line(text, gold))


def _said(text: str) -> str | None:
    """What stands behind the last phrase that announces an answer, to the end of the sentence."""
    text = _MARKUP.sub("", _JSON.sub(r"answer: \2\n", text))
    end = len(text)
    while end > 0:
        start = text.rfind("\n", 0, end - 1) + 1
        line = text[start:end]
        lowered = line.lower()
        patterns = [pattern for keys, pattern in _PHRASES if any(key in lowered for key in keys)]
        places = [found.end() for pattern in patterns for found in pattern.finditer(line + "\n")]
        if (hashes := _HASHES.match(line)) and _is_answer(hashes[1]):
            places.append(hashes.start(1))
        for place in sorted(places, reverse=True):
            if sentence := _sentence(text[start + place :]):
                return sentence
        end = start - 1 if start and end == start else start
    return None


def _is_answer(text: str) -> bool:
    """Whether what stands behind #### is an answer, and not the heading of a step."""
    read = typed(text)
    return read is not None and read.kind != "text" and not re.match(r"\d+\.\s", text)


def _sentence(rest: str) -> str:
    rest = re.sub(r"^[\s*_:：=>`]+", "", rest)
    if display := re.match(r"(?:\$\$(.+?)\$\$|\\\[(.+?)\\\])", rest, re.DOTALL):
        return display[1] or display[2]
    line = rest.partition("\n")[0][:_LONGEST_LINE]
    end = _SENTENCE_END.search(line, 1)
    if end and end[0] in "?？":
        return ""  # a question gives no answer
    return _ENDINGS.sub("", line[: end.start()] if end else line).strip()


def _reads(text: str, gold: Gold) -> bool:
    """Whether a text as a whole can be of the type of the row's answer."""
    read = typed(text)
    if read is None:
        return False
    if gold.kind == "text":
        return True
    if gold.kind == "choice":
        return (
            read.kind == "choice"
            or bool(re.fullmatch("[a-zA-Z]", read.text))
            or (bool(gold.words) and read.kind != "latex")
        )
    if read.kind == "text":
        is_product = gold.kind in ("expression", "relation") and re.fullmatch("[A-Za-z]{2,3}", read.text) is not None
        return is_product or read.words in SETS_IN_WORDS
    if read.kind == "latex":
        inner = text.strip().strip("$")
        return "\\" in inner and "$" not in inner.replace("\\$", "") and not _PROSE.search(_NOT_PROSE.sub(" ", inner))
    return True


def _part(text: str, gold: Gold, only: bool = False) -> str:
    """Of a passage all, if it is an answer, else its first part that is one; `only`: if it has no other."""
    if _reads(text, gold):
        return text
    plain = _DENIED.sub(" ", re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text))
    if gold.kind == "choice":
        letter = _CHOICE.match(plain)
        # In "A banana" the letter is a word.
        if letter and _OTHER_CHOICE.match(plain, letter.end()):
            return ""
        if letter and letter[1].isupper() and not (letter[1] in "AI" and re.match(r"\s+[a-z]", plain[letter.end() :])):
            return letter[1]
        named = _NAMED.findall(plain)
        return "".join(named[0]) if len(named) == 1 else text if gold.words else ""
    if gold.kind == "text" or _reads(plain, gold):
        return text if gold.kind == "text" else plain
    return _one_of(plain, gold, 0, only)


def _one_of(plain: str, gold: Gold, which: int, only: bool = False) -> str:
    """The first (`which` 0) or last (-1) piece of mathematics in a passage; "" if its neighbour rivals it."""
    plain = _REMARK.sub("", plain)
    before, _, right = plain.rpartition("=")
    pieces = _pieces(plain, gold)
    sums_up = which == -1 or not pieces or re.search(r"\b(?:times|plus|minus|divided by|multiplied by)\b", before)
    if before and sums_up and _reads(right := _ENDINGS.sub("", right), gold):
        return right
    if only and len(list(_NUMBER.finditer(plain))) > 1:
        return ""
    if len(pieces) > 1:
        one, two = pieces[:2] if which == 0 else pieces[-2:]
        if only or _RIVAL.fullmatch(plain, one[1], two[0]):
            return ""
    return pieces[which][2] if pieces else ""


def _pieces(plain: str, gold: Gold) -> list[tuple[int, int, str]]:
    """(start, end, text) of what stands between dollar signs or brackets of LaTeX, and of numbers among the words."""
    found, covered = [], []
    for match in _MATH.finditer(plain):
        covered.append(match.span())
        inner = "".join(filter(None, match.groups()))
        if _reads(inner, gold) and not _names_only(inner, gold):
            found.append((*match.span(), inner))
    for match in _NUMBER.finditer(plain):
        start, end = match.span()
        inside = any(low <= start < high for low, high in covered)
        if (
            not inside
            and not _OPERATOR_BEFORE.search(plain[max(0, start - 16) : start])
            and not _OPERATOR_BEHIND.match(plain, end)
        ):
            found.append((start, end, match[0]))
    return sorted(found)


def _names_only(text: str, gold: Gold) -> bool:
    """Whether a text is about variables where the row's answer has none, as in: the value of $x$ is 42."""
    read = typed(text)
    if (
        read is None
        or read.node is None
        or gold.node is None
        or read.node.op in ("rel", "chain", "list", "set", "tuple")
    ):
        return False
    return bool(symbols(read.node)) and not symbols(gold.node)


def _from_last_line(text: str, gold: Gold) -> str:
    """What the last line that holds an answer ends in."""
    lines = [line for line in re.split(r"\n+", text) if not _RULE.match(line)]
    for line in reversed(lines[-1:] if gold.kind in ("choice", "text") else lines[-50:]):
        bullet = r"^\s*(?:[-*•]\s+|#+\s*)" if len(lines) > 1 else r"^\s*(?:[*•]\s+|#+\s*)"
        line = _DENIED.sub(" ", re.sub(bullet, "", line)[-_LONGEST_LINE:]).strip()
        whole = _reads(_MARKUP.sub("", line), gold)
        if whole and gold.kind != "text":
            return line
        if found := _end_of_line(line, gold):
            return found
        if whole:
            return line
    return ""


def _end_of_line(line: str, gold: Gold) -> str:
    bold = [found for found in re.findall(r"\*\*(.+?)\*\*", line) if _reads(found, gold)]
    if bold and (gold.kind != "choice" or re.fullmatch(r"\W*[A-J]\W*.*", bold[-1])):
        return str(bold[-1])
    plain = _MARKUP.sub("", line)
    if gold.kind in ("choice", "text"):
        said = re.search(
            r"(?:\b(?:is|are|was|be|choose|pick|select|say)|[:：])\s+(?:option\s+|choice\s+)?(.{1,80}?)[.。!]?\s*$",
            plain,
        )
        if said and _reads(said[1], gold):
            return said[1]
        named = _NAMED.findall(plain) or _CHOSEN.findall(plain) if gold.kind == "choice" else []
        return "".join(named[-1]) if named else ""
    said = _SAID.search(plain)
    if said and _reads(said[1], gold) and not _names_only(said[1], gold):
        return said[1]
    return _one_of(plain, gold, -1)


def shown(text: str) -> str:
    """A text for a line of a report."""
    spelled = one_spelling(text)
    return spelled if len(spelled) <= 120 else spelled[:117] + "..."


def judge(prompt: str, response: str, answer: Any) -> Verdict:
    """What the reward says of a response, and how it came to it.

    Raises `RowError` if the row's answer cannot be read: that is the data's fault, not the policy's; `PolicyError` if
    comparing the response's answer fails.
    """
    try:
        gold = gold_of(answer)
    except AnswerError as error:
        raise RowError(str(error)) from error
    try:
        return _judged(gold, response)
    except MemoryError:
        raise
    except Exception as error:
        # Nothing but the response has changed since the last call that went well.
        raise PolicyError(f"its answer cannot be compared: {type(error).__name__}: {error}"[:500]) from error


def _judged(gold: Gold, response: str) -> Verdict:
    place, text = answer_of_response(response, gold)
    steps = [("extracted", f"{shown(text)!r} from {place}" if text else f"nothing ({place})")]
    if not text:
        return Verdict(0.0, f"the response gives no answer of type {gold.kind}", tuple(steps))
    steps.append(("parsed", _told(typed(text))))
    steps.append(("gold", _told(gold)))
    is_same, rule = same(gold, text)
    steps.append(("compared", rule))
    why = "" if is_same else f"the response says {shown(text)!r}, the row {gold.text!r} ({rule})"
    return Verdict(1.0 if is_same else 0.0, why, tuple(steps))


def _told(gold: Gold | None) -> str:
    if gold is None:
        return "nothing that is an answer"
    exact = value(gold.node) if gold.node is not None else None
    short = exact is not None and max(exact.numerator.bit_length(), exact.denominator.bit_length()) < 300
    said = str(exact) if short else gold.letter or gold.words or gold.text
    return f"{gold.kind} {said[:200]}" + (f" {gold.unit}" if gold.unit else "")


def score(prompt: str, response: str, answer: Any) -> float:
    """1.0 if `response` gives an answer equal to `answer`, else 0.0; raises as `judge` does."""
    return judge(prompt, response, answer).reward
