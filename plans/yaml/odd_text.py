"""Text that looks like YAML and is not: characters that nobody sees or that look like others, tabs as indentation, and
numbers that people and versions of YAML read differently."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_QUOTES = {**dict.fromkeys("“”„‟", '"'), **dict.fromkeys("‘’‚‛", "'")}
_DASHES = dict.fromkeys("‐‑‒–—―−", "-")
_BACK = 5
"""Lines before the one where a parser notices a fault among which its cause is looked for: a key without an ASCII colon
goes on until the next key."""


def hidden(char: str) -> bool:
    """Whether a character cannot be told from a space, a line break or nothing."""
    return char not in " \t\r\n" and unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cf", "Cc")


def is_quote(char: str) -> bool:
    """Whether a character is a quotation mark that YAML takes for text."""
    return char in _QUOTES


def named(char: str) -> str:
    """A character by its number and name, and, as a remedy after a semicolon, what to write instead of it."""
    text = f"U+{ord(char):04X} ({unicodedata.name(char, 'a control character').lower()})"
    instead = _instead(char)
    if instead is None:
        return text
    return f"{text}; " + ("write a space" if instead == " " else f"write {instead}" if instead else "remove it")


def _instead(char: str) -> str | None:
    """The ASCII that was probably meant; "" for nothing, None where that cannot be told."""
    if hidden(char):
        return " " if unicodedata.category(char) == "Zs" else ""
    if "\uff01" <= char <= "\uff5e":  # full-width forms of ASCII
        return chr(ord(char) - 0xFEE0)
    digit = unicodedata.decimal(char, None)
    return (_QUOTES | _DASHES).get(char, None if digit is None or char.isascii() else str(digit))


def foreign(text: str) -> str | None:
    """The first character of a key or value that is no ASCII, by name; None without any. Digits are read as a whole."""
    char = next((char for char in text if not char.isascii()), None)
    if char is None or not text.isdecimal():
        return char and named(char)
    return f"{named(char).partition(';')[0]}; write {int(text)}"


_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")


def suspect(lines: Sequence[str], noticed: int) -> tuple[int, str] | None:
    """(line from 1, what stands there and what to write) of the likely cause of a syntax error that a parser noticed in
    line `noticed`: a tab as indentation, or a character that is not what it looks like. None without any."""
    for number in range(min(noticed, len(lines)), max(0, noticed - _BACK), -1):
        line = _COMMENT.sub("", _QUOTED.sub(lambda match: "_" * len(match[0]), lines[number - 1]))
        tab = re.match(r"[ ]*\t", line)
        if tab:
            return number, f"column {tab.end()} is a tab; indent with spaces"
        for column, char in enumerate(line, 1):
            if not char.isascii() and (hidden(char) or is_quote(char) or "\uff01" <= char <= "\uff5e"):
                return number, f"column {column} is {named(char)}"
    return None


def doubtful_number(text: str) -> str | None:
    """What is wrong with an unquoted number that begins with 0, and what to write; None for all other text."""
    if not re.fullmatch(r"[-+]?0[0-9_]+", text):
        return None
    sign, digits = text.rstrip("0123456789_"), re.sub(r"[-+_]", "", text)
    decimal = f"{sign.strip('+')}{int(digits)}"
    quotes = f"or '{text}' in quotes if it is text"
    if re.fullmatch("[0-7]+", digits) and int(digits, 8) != int(digits):
        octal = f"{sign.strip('+')}{int(digits, 8)}"
        return f"{text} is {octal} (octal) in YAML 1.1 and {decimal} in YAML 1.2; write {decimal} or {octal}, {quotes}"
    return f"{text} begins with 0; write {decimal}, {quotes}"


def meant_number(text: str, seconds: bool) -> list[str]:
    """The numbers that a text may mean which YAML 1.2 does not read as one, the likelier first: other bases, `12:30`
    (of a key in `seconds`), commas, points between thousands, `50%`, `128k`; [] for all other text."""
    plain = text.replace("_", "")
    if re.fullmatch(r"[-+]?0([oO][0-7]+|[xX][0-9a-fA-F]+|[bB][01]+)", plain):
        return [str(int(plain, 0))]
    if seconds and re.fullmatch(r"[0-9]+(:[0-5]?[0-9]){1,2}", plain):
        total = 0
        for part in plain.split(":"):
            total = 60 * total + int(part)
        return [str(total)]
    if re.fullmatch(r"[-+]?[0-9]{1,3}([,.][0-9]{3})+", plain):
        thousands = re.sub("[,.]", "", plain)
        return [plain.replace(",", "."), thousands] if len(re.findall("[,.]", plain)) == 1 else [thousands]
    if re.fullmatch(r"[-+]?[0-9]+,[0-9]+", plain):
        return [plain.replace(",", ".")]
    if match := re.fullmatch(r"([-+]?[0-9]*\.?[0-9]+) ?([%kKM])", plain):
        return [f"{float(match[1]) * {'%': 0.01, 'k': 1e3, 'K': 1e3, 'M': 1e6}[match[2]]:.12g}"]
    if plain != text and re.fullmatch(r"[-+]?[0-9]+(\.[0-9]*)?", plain):
        return [plain]
    return []
