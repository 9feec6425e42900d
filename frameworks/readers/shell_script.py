"""The commands that a shell script would start, read without running any.

`shell_commands` goes through a script as a shell does: it assigns variables and arrays, reads files that it sources and
scripts that it starts, takes the branch that a test leads to, and calls its functions. A test that follows from the
machine leads to the first branch; a loop's body is gone through once, with the first value. Each command comes with the
line of each of its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...plans.yaml.errors import InputError
from .shell_words import ShellVariables, ShellWord, UnclosedText, arithmetic, end_of, expand, expand_text

MOST_BYTES, MOST_DEEP, MOST_STATEMENTS = 2_000_000, 20, 20_000
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_DECLARING = frozenset(("export", "local", "declare", "readonly", "typeset"))
_OPERATORS = (";;", "&&", "||", ";", "|", "&", "(", ")", "\n")


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command with its arguments: `words[0]` is its name."""

    words: tuple[ShellWord, ...]

    def texts(self) -> list[str]:
        """The words' texts."""
        return [word.text for word in self.words]


@dataclass(frozen=True, slots=True)
class ShellScript:
    """Commands in order, and the files that were to be sourced and are not here."""

    commands: tuple[ShellCommand, ...]
    missing: tuple[ShellWord, ...]


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int
    is_word: bool
    array: tuple[_Token, ...] | None = None
    """Elements, of `NAME=(…)`."""


def shell_commands(path: Path, text: str) -> ShellScript:
    """The commands of a script. Raises InputError where quotes or brackets are not closed."""
    run = _Run(ShellVariables(str(path.parent)))
    run.file(path, text)
    return ShellScript(tuple(run.commands), tuple(run.missing))


def _tokens(path: Path, text: str) -> list[_Token]:
    try:
        return list(_cut(text, 0, 1, None)[0])
    except UnclosedText as error:
        line = text.count("\n", 0, int(error.args[0])) + 1
        raise InputError("what begins here (a quote, a bracket) is never closed; close it", str(path), line) from None


def _cut(text: str, at: int, line: int, until: str | None) -> tuple[list[_Token], int, int]:
    """(tokens, the index behind them, its line) from `at` on, up to `until` if that is given."""
    tokens: list[_Token] = []
    heredocs: list[str] = []
    while at < len(text):
        char = text[at]
        if char == until:
            return tokens, at + 1, line
        if text.startswith("\\\n", at):
            at, line = at + 2, line + 1
        elif text.startswith("\\\r\n", at):
            at, line = at + 3, line + 1
        elif char == "#":
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif char == "\n" and heredocs:
            tokens.append(_Token("\n", line, False))
            at, line = at + 1, line + 1
            while heredocs and at < len(text):
                end = text.find("\n", at) if "\n" in text[at:] else len(text)
                if text[at:end].strip() == heredocs[0]:
                    heredocs.pop(0)
                at, line = min(len(text), end + 1), line + 1
        elif char.isspace() and char != "\n":
            at += 1
        elif text.startswith("((", at) and (not tokens or not tokens[-1].is_word or tokens[-1].text in ("if", "for")):
            end = text.find("))", at)
            if end < 0:
                raise UnclosedText(at)
            tokens.append(_Token(text[at : end + 2], line, True))
            line, at = line + text.count("\n", at, end), end + 2
        elif operator := next((each for each in _OPERATORS if text.startswith(each, at)), None):
            if not (operator == "&" and text.startswith("&>", at)):
                tokens.append(_Token(operator, line, False))
                line += operator == "\n"
                at += len(operator)
            else:
                at += 1
        elif char in "<>":
            at, line, delimiter = _redirected(text, at, line)
            heredocs += [delimiter] if delimiter else []
        else:
            token, at, line = _word(text, at, line)
            tokens.append(token)
    if until is not None:
        raise UnclosedText(len(text) - 1)
    return tokens, at, line


def _word(text: str, at: int, line: int) -> tuple[_Token, int, int]:
    start, begun = at, line
    while at < len(text) and not text[at].isspace() and text[at] not in ";|&()<>":
        if text.startswith("\\\n", at):
            break
        at = end_of(text, at) if text[at] in "\\'\"`$" else at + 1
    raw = text[start:at]
    if at < len(text) and text[at] == "(" and (match := _ASSIGNED.fullmatch(raw)) and not match[2]:
        elements, at, line = _cut(text, at + 1, line, ")")
        return _Token(raw, begun, True, tuple(each for each in elements if each.is_word)), at, line
    if at < len(text) and text[at] in "<>" and raw.isdigit():
        at, line, _ = _redirected(text, at, line)
        return _Token("", begun, False), at, line
    return _Token(raw, begun, True), at, line + raw.count("\n")


def _redirected(text: str, at: int, line: int) -> tuple[int, int, str | None]:
    """(index behind a redirection, its line, the delimiter of a here-document)."""
    match = re.compile(r"(<<<|<<-?|>>|>&|<&|>\||[<>])&?[ \t]*").match(text, at)
    assert match is not None
    token, end, line = _word(text, match.end(), line)
    return end, line, token.text.strip("'\"\\") if match[1] in ("<<", "<<-") else None


@dataclass
class _Run:
    variables: ShellVariables
    commands: list[ShellCommand] = field(default_factory=list)
    missing: list[ShellWord] = field(default_factory=list)
    _functions: dict[str, list[_Token]] = field(default_factory=dict)
    _depth: int = 0
    _statements: int = 0

    def file(self, path: Path, text: str) -> None:
        before = self.variables.path, self.variables.folder
        self.variables.path, self.variables.folder = str(path), str(path.parent)
        self._body(_tokens(path, text))
        self.variables.path, self.variables.folder = before

    def _body(self, tokens: Sequence[_Token]) -> None:
        self._depth += 1
        at = 0
        while at < len(tokens) and self._depth < MOST_DEEP and self._statements < MOST_STATEMENTS:
            self._statements += 1
            at = self._statement(tokens, at)
        self._depth -= 1

    def _statement(self, tokens: Sequence[_Token], at: int) -> int:
        token = tokens[at]
        if not token.is_word:
            return at + 1
        if token.text == "if":
            return self._if(tokens, at)
        if token.text in ("for", "while", "until", "select"):
            return self._loop(tokens, at)
        if token.text == "case":
            return self._case(tokens, at)
        if token.text in ("then", "do", "done", "fi", "else", "esac", "{", "}", "!", "time"):
            return at + 1
        function = [each.text for each in tokens[at + 1 : at + 3]] == ["(", ")"]
        if function or token.text == "function":
            name = token.text if function else tokens[at + 1].text if at + 1 < len(tokens) else ""
            begin = next((i for i in range(at, len(tokens)) if tokens[i].text == "{"), len(tokens) - 1)
            end = _closing(tokens, begin, ("{",), "}")
            self._functions[name] = list(tokens[begin + 1 : end])
            return end + 1
        end = at
        while end < len(tokens) and (tokens[end].is_word or (tokens[at].text == "[[" and tokens[end].text != "\n")):
            end += 1
            if tokens[at].text == "[[" and tokens[end - 1].text == "]]":
                break
        self._simple(tokens[at:end])
        return end

    def _simple(self, tokens: Sequence[_Token]) -> None:
        rest = list(tokens)
        declaring = bool(rest) and rest[0].text in _DECLARING
        if declaring:
            rest = [each for each in rest[1:] if not each.text.startswith("-")]
        while rest and (match := _ASSIGNED.match(rest[0].text)):
            self._assign(rest.pop(0), match)
        if declaring or not rest:
            return
        words = [word for each in rest for word in expand(each.text, each.line, self.variables)]
        if not words:
            return
        name, first = words[0].text, words[1] if len(words) > 1 else None
        if name in ("source", ".") and first is not None:
            self._source(first)
        elif name in ("bash", "sh") and any(word.text.endswith(".sh") for word in words):
            self._start(words)
        elif name in self._functions:
            self._body(self._functions[name])
        elif name not in ("[", "[[", "test", "set", "shift", "cd", "return", "exit"):
            self.commands.append(ShellCommand(tuple(words)))

    def _assign(self, token: _Token, match: re.Match[str]) -> None:
        name, append = match[1], bool(match[3])
        if token.array is not None:
            elements = [word for each in token.array for word in expand(each.text, each.line, self.variables)]
            self.variables.assign(name, elements, append, scalar=False)
        elif not match[2]:
            word = expand_text(token.text[match.end() :], token.line, self.variables)
            self.variables.assign(name, [word], append)

    def _source(self, word: ShellWord) -> None:
        for folder in (Path(), Path(self.variables.folder)):
            path = folder / word.text
            if not word.unresolved and path.is_file() and path.stat().st_size <= MOST_BYTES:
                self.file(path, path.read_text(encoding="utf-8", errors="replace"))
                return
        self.missing.append(word)

    def _start(self, words: Sequence[ShellWord]) -> None:
        """Go through a script that is started with arguments."""
        at = next(i for i, word in enumerate(words) if word.text.endswith(".sh"))
        here = Path(self.variables.folder).resolve()
        folders = (Path(), here, *here.parents[:6])
        path = next((each / words[at].text for each in folders if (each / words[at].text).is_file()), None)
        if path is None or words[at].unresolved or path.stat().st_size > MOST_BYTES:
            self.commands.append(ShellCommand(tuple(words)))
            return
        before, self.variables.arguments = self.variables.arguments, tuple(words[at + 1 :])
        self.file(path, path.read_text(encoding="utf-8", errors="replace"))
        self.variables.arguments = before

    def _if(self, tokens: Sequence[_Token], at: int) -> int:
        end = _closing(tokens, at, ("if",), "fi")
        taken, begin, kind = False, at + 1, "if"
        for split, word in [*_at_top(tokens, at + 1, end, ("elif", "else")), (end, "fi")]:
            part = tokens[begin:split]
            then = next((i for i, _ in _at_top(part, 0, len(part), ("then",))), -1)
            if not taken and (kind == "else" or self._holds(part[: max(0, then)]) is not False):
                self._body(part[then + 1 :])
                taken = True
            begin, kind = split + 1, word
        return end + 1

    def _holds(self, tokens: Sequence[_Token]) -> bool | None:
        """What a test says; None where that follows from the machine."""
        words = [each.text for each in tokens if each.text != "\n"]
        while words and words[-1] == ";":
            words.pop()
        if words and words[0].startswith("((") and len(words) == 1:
            number = arithmetic(words[0][2:-2], self.variables)
            return None if number is None else bool(number)
        if not words or words[0] not in ("[", "[[", "test") or {"&&", "||"} & set(words):
            return None
        inner = [each for each in words[1:] if each not in ("]", "]]")]
        denied = inner[:1] == ["!"]
        held = self._tested([expand_text(each, 1, self.variables) for each in inner[denied:]])
        return None if held is None else held != denied

    def _tested(self, words: list[ShellWord]) -> bool | None:
        texts = [word.text for word in words]
        if len(words) == 2 and texts[0] in ("-z", "-n"):
            # A variable that is never set is empty, unless the shell's surroundings set it.
            return (texts[0] == "-z") == (not texts[1] or texts[1].startswith("${") or bool(words[1].unresolved))
        if any(word.unresolved for word in words) or len(words) != 3:
            return None
        left, operator, right = texts
        if operator in ("=", "==", "!="):
            return (left == right) == (operator != "!=")
        compared = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
        if operator in compared:
            number = arithmetic(f"{left} {compared[operator]} {right}", self.variables)
            return None if number is None else bool(number)
        return None

    def _loop(self, tokens: Sequence[_Token], at: int) -> int:
        end = _closing(tokens, at, ("for", "while", "until", "select"), "done")
        begin = next((i for i, _ in _at_top(tokens, at + 1, end, ("do",))), end)
        head = tokens[at + 1 : begin]
        if len(head) > 2 and head[1].text == "in":
            values = [
                word for each in head[2:] if each.is_word for word in expand(each.text, each.line, self.variables)
            ]
            self.variables.assign(head[0].text, values[:1])
        self._body(tokens[begin + 1 : end])
        return end + 1

    def _case(self, tokens: Sequence[_Token], at: int) -> int:
        end = _closing(tokens, at, ("case",), "esac")
        subject = expand_text(tokens[at + 1].text, 1, self.variables)
        begin = next((i + 1 for i in range(at, end) if tokens[i].text == "in"), end)
        for part in _split(tokens[begin:end], ";;"):
            close = next((i for i, each in enumerate(part) if each.text == ")"), -1)
            patterns = [
                expand_text(each.text, 1, self.variables).text for each in part[: max(close, 0)] if each.is_word
            ]
            if close >= 0 and (subject.unresolved or subject.text in patterns or "*" in patterns):
                self._body(part[close + 1 :])
                break
        return end + 1


def _at_top(tokens: Sequence[_Token], begin: int, end: int, words: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(index, word) of words that stand outside of inner `if`s and loops."""
    at = begin
    while at < end:
        text = tokens[at].text if tokens[at].is_word else ""
        first = at == begin or not tokens[at - 1].is_word or tokens[at - 1].text in ("then", "do", "else", "{")
        if first and text in ("if", "for", "while", "until", "select", "case"):
            at = _closing(tokens, at, (text,), {"if": "fi", "case": "esac"}.get(text, "done"))
        elif first and text in words:
            yield at, text
        at += 1


def _closing(tokens: Sequence[_Token], begin: int, opening: tuple[str, ...], closing: str) -> int:
    """The index of the word that closes what begins at `begin`; the last one if none does."""
    loops = ("for", "while", "until", "select")
    openers = loops if opening[0] in loops else opening
    depth = 0
    for at in range(begin, len(tokens)):
        first = at == begin or not tokens[at - 1].is_word or tokens[at - 1].text in ("then", "do", "else", "{", "}")
        if tokens[at].is_word and first:
            depth += (tokens[at].text in openers) - (tokens[at].text == closing)
            if depth == 0:
                return at
    return len(tokens) - 1


def _split(tokens: Sequence[_Token], by: str) -> Iterator[list[_Token]]:
    part: list[_Token] = []
    for token in tokens:
        if token.text == by and not token.is_word:
            yield part
            part = []
        else:
            part.append(token)
    yield part
