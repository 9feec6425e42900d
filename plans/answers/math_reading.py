"""The grammar of an answer: numbers, expressions, lists, sets, tuples, intervals, relations and matrices, as a tree.

Numbers are exact fractions from the start. What this grammar does not know (integrals, sums, words) is left to
math-verify by who calls it; nothing is guessed: an unknown command or an open bracket is `Unread`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from .math_numbers import NUMBER_FORMS, Node, Unread, number, replaced, whole_number_form
from .math_text import groups_joined

_TOKEN = re.compile(
    r"\s*(?:(?P<num>\d+\.\d+|\d+|\.\d+)"
    r"|(?P<cmd>\\begin\{(?:[pbB]?|small)(?:matrix|array)\*?\}(?:\{[lcr| ]*\})?|\\end\{\w+\*?\}|\\[a-zA-Z]+|\\[{}|\\])"
    r"|(?P<word>[a-zA-Z])|(?P<sign><=|>=|!=|\.\.\.|\S))"
)
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "!=": "!=",
    "\\approx": "~", "\\equiv": "=",
}  # fmt: skip
_FUNCTION_NAMES = """sin cos tan cot sec csc arcsin arccos arctan arccot asin acos atan sinh cosh tanh coth
arcsinh arccosh arctanh ln log lg exp gcd lcm max min sqrt cbrt abs Re Im sgn"""
_GREEK_NAMES = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon
phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell"""
_FUNCTIONS, _GREEK = set(_FUNCTION_NAMES.split()), set(_GREEK_NAMES.split())
_TEXT_NAME = re.compile(rf"\\text\s*\{{\s*({'|'.join(_FUNCTIONS)}|[a-zA-Z])\s*\}}")
_PLAIN = re.compile(
    r"(?<![a-zA-Z\\])(pi|theta|alpha|beta|infty|infinity|inf|oo|"
    + "|".join(sorted(_FUNCTIONS, key=len)[::-1])
    + r")(?![a-zA-Z])"
)
_JOINT = re.compile(r"(?:\s*,)?\s*(?:\\text\s*\{\s*(?:,?\s*)(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))\s*")
_BUILDER = re.compile(
    r"\\?\{\s*[a-zA-Z]\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|R)\s*)?"
    r"(?:\||:|\\text\s*\{\s*such that\s*\})\s*([^|]+?)\s*\\?\}"
)
_WHOLE = re.compile(
    r"(?<![\s,;])[\s,;]*(?:\\text\s*\{\s*,?\s*(?:where|for|with|and)?\s*\})?\s*\(?\s*(?P<name>[a-zA-Z])\s*"
    r"(?:\\in\s*(?:\\mathbb\s*\{?\s*Z\s*\}?|Z)|\\text\s*\{\s*(?:is an(?:y)? |any )?integer\s*\})\s*\)?$"
)
_MODULUS = re.compile(r"\s*\(?\s*(?:\\[pb]?mod|\\text\s*\{\s*mod\s*\}|\bmod)\s*\{?\s*([1-9]\d{0,8})\s*\}?\s*\)?$")
"""A name for whole numbers, at the end: k pi, k in Z."""
_NOT_PLAIN = re.compile(r"\\text\s*\{[^{}]*\}|\\(?:begin|end)\{[a-z*]+\}(?:\{[lcr|]*\})?|_\s*\{[^{}]*\}")
_COMMON_WORDS = "so if is in we to by of at as on it be are the then thus hence for where with from not"
_WORDS = set(_COMMON_WORDS.split())
_NAMES = {"theta", "alpha", "beta", "infty", "infinity"}
MOST_SIGNS = 1500
"""Signs of a text; longer ones are outside of the grammar."""


def read(text: str) -> Node:
    """The tree of an answer in the spelling of `one_spelling`. Raises `Unread`."""
    if len(text) > MOST_SIGNS:
        raise Unread("a text of too many signs")
    if (written := whole_number_form(text)) is not None:
        return written
    if (condition := _WHOLE.search(text)) and condition.start():
        whole = condition["name"]
        tree: Node = replaced(
            read(text[: condition.start()]), lambda name: Node("sym", ("k" if name == whole else name,))
        )
        return tree
    if (modulus := _MODULUS.search(text)) and modulus.start():
        return _residue(read(text[: modulus.start()]), int(modulus[1]))
    if builder := _BUILDER.fullmatch(text):
        text = builder[1]
    text = _TEXT_NAME.sub(lambda found: (" " if len(found[1]) == 1 else "\\") + found[1] + " ", text)
    for letters in re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", _NOT_PLAIN.sub(" ", text)):
        wordy = len(letters) > 3 and letters not in _FUNCTIONS | _NAMES and "".join(sorted(set(letters))) != letters
        if wordy or letters.lower() in _WORDS:
            raise Unread(f"the word {letters}")
    text = _JOINT.sub(" , ", text).replace(";", " , ")
    text = _PLAIN.sub(
        lambda found: "\\" + {"infinity": "infty", "inf": "infty", "oo": "infty"}.get(found[1], found[1]) + " ", text
    )
    parser = _Parser(groups_joined(text))
    found = parser.items()
    if parser.place != len(parser.tokens):
        raise Unread(f"{parser.tokens[parser.place]!r} has no place")
    return found


class _Parser:
    """Recursive descent over tokens; texts that are one number are tokens of their own."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str | Node] = []
        place = 0
        while place < len(text.rstrip()):
            for pattern, builder in NUMBER_FORMS:
                start = place + len(text[place:]) - len(text[place:].lstrip())
                if (match := pattern.match(text, start)) and match.end() > start and (node := builder(match)):
                    self.tokens.append(node)
                    place = match.end()
                    break
            else:
                match = _TOKEN.match(text, place)
                assert match is not None, "any sign is a token"
                self.tokens.append(number(match["num"]) if match["num"] else match[0].strip())
                place = match.end()
        self.place = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> str | Node | None:
        return self.tokens[self.place + ahead] if self.place + ahead < len(self.tokens) else None

    def take(self, *wanted: str) -> bool:
        if self.peek() in wanted and isinstance(self.peek(), str):
            self.place += 1
            return True
        return False

    def want(self, *wanted: str) -> None:
        if not self.take(*wanted):
            raise Unread(f"{' or '.join(wanted)} is missing before {self.peek()!r}")

    def items(self, *ends: str) -> Node:
        """A list up to one of `ends`, or its only item; relations are among the items."""
        found: list[Node] = []
        while True:
            if self.take("\\ldots", "..."):
                found.append(Node("dots"))
            else:
                found.append(self.relation())
            if not self.take(","):
                break
            if self.peek() in ends or self.peek() is None:
                break  # a comma at the end
        if len(found) > 1:
            return Node("list", tuple(found))
        if found[0].op == "dots":
            raise Unread("an ellipsis alone")
        return found[0]

    def relation(self) -> Node:
        left = self.ratio()
        if self.take("\\in"):
            right = self.union()
            return Node("rel", ("in", left, right))
        chain = []
        while isinstance(sign := self.peek(), str) and sign in _RELATIONS:
            self.place += 1
            right = self.ratio()
            chain.append(Node("rel", (_RELATIONS[sign], left, right)))
            left = right
        if not chain:
            return left
        return chain[0] if len(chain) == 1 else Node("chain", tuple(chain))

    def ratio(self) -> Node:
        """Of two a fraction, of more a tuple that begins with 1."""
        parts = [self.union()]
        while self.take(":"):
            parts.append(self.union())
        if len(parts) < 3:
            return parts[0] if len(parts) == 1 else Node("ratio", tuple(parts))
        return Node("tuple", tuple(Node("div", (each, parts[0])) for each in parts))

    def union(self) -> Node:
        parts = [self.sum()]
        while self.take("\\cup"):
            parts.append(self.sum())
        return parts[0] if len(parts) == 1 else Node("union", tuple(parts))

    def sum(self) -> Node:
        parts: list[Node] = []
        sign = self.signed()
        parts.append(sign(self.product()))
        while self.peek() in ("+", "-", "\\pm", "\\mp"):
            which = {"+": "add", "-": "neg", "\\pm": "pm", "\\mp": "mp"}[str(self.peek())]
            self.place += 1
            more = self.signed()
            right = more(self.product())
            parts.append(right if which == "add" else Node(which, (right,)))
        return parts[0] if len(parts) == 1 else Node("add", tuple(parts))

    def signed(self) -> Any:
        """The function that the signs before a term apply to it."""
        ops: list[str] = []
        while self.peek() in ("+", "-", "\\pm", "\\mp"):
            ops.append({"+": "", "-": "neg", "\\pm": "pm", "\\mp": "mp"}[str(self.peek())])
            self.place += 1

        def applied(node: Node) -> Node:
            for op in reversed(ops):
                node = _negative(node) if op == "neg" else Node(op, (node,)) if op else node
            return node

        return applied

    def product(self, implicit_only: bool = False) -> Node:
        parts = [self.power()]
        while True:
            token = self.peek()
            if not implicit_only and token in ("\\cdot", "\\times", "*", "/"):
                self.place += 1
                sign = self.signed()
                right = sign(self.power())
                if token == "/":
                    left = parts[0] if len(parts) == 1 else Node("mul", tuple(parts))
                    # 1/2x is a half of x, as calculators and math-verify have it.
                    parts = [Node("div", (left, right))]
                else:
                    parts.append(right)
            elif self._begins_factor(token):
                if implicit_only and isinstance(token, str) and token[1:] in _FUNCTIONS:
                    break
                if isinstance(token, Node) and isinstance(self.peek(-1), Node):
                    raise Unread("two numbers with no sign between them")
                if isinstance(token, Node) and self.peek(-1) not in (")", "}", "]", "|", "\\}", "!"):
                    raise Unread("a number behind a letter")
                parts.append(self.power())
            else:
                break
        return parts[0] if len(parts) == 1 else Node("mul", tuple(parts))

    def _begins_factor(self, token: str | Node | None) -> bool:
        if isinstance(token, Node):
            return True
        if token is None:
            return False
        if token == "|":
            return self.bars == 0
        if token.startswith("\\"):
            name = token[1:]
            others = ("frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", "overline")
            return name in others or name in _FUNCTIONS or name in _GREEK or name.startswith("begin{")
        return token in "({" or (token.isalpha() and token.isascii())

    def power(self) -> Node:
        base = self.atom()
        while True:
            if self.take("^"):
                if self.take("\\circ") or self._group_is("\\circ"):
                    base = Node("degree", (base,))
                    continue
                base = Node("pow", (base, self.argument()))
            elif self.peek() == "!" and self.peek(1) != "=":
                self.place += 1
                base = Node("fact", (base,))
            elif self.take("%"):
                base = Node("percent", (base,))
            else:
                return base

    def _group_is(self, name: str) -> bool:
        if self.peek() == "{" and self.peek(1) == name and self.peek(2) == "}":
            self.place += 3
            return True
        return False

    def argument(self) -> Node:
        """What a command or `^` applies to: a group, or one token; of a number one digit, as TeX reads it."""
        token = self.peek()
        if token == "{":
            return self.atom()
        if token in ("-", "+"):
            self.place += 1
            inner = self.argument()
            return _negative(inner) if token == "-" else inner
        return self.atom()

    def tex_digit(self) -> Node:
        """The argument of \\frac and \\sqrt: a group, or one digit or letter."""
        token = self.peek()
        if isinstance(token, Node) and token.op == "num" and token.args[1] is None:
            digits = str(token.args[0])
            if len(digits) > 1:
                self.tokens[self.place : self.place + 1] = [number(digits[0]), number(digits[1:])]
        return self.argument()

    def atom(self) -> Node:
        token = self.peek()
        if token is None:
            raise Unread("the text ends in the middle")
        self.place += 1
        if isinstance(token, Node):
            return token
        if token in ("(", "["):
            return self.bracket(token)
        if token == "{":
            inner = self.items("}")
            self.want("}")
            return Node("set", inner.args) if inner.op == "list" else inner
        if token == "\\{":
            if self.take("\\}"):
                return Node("set")
            inner = self.items("\\}")
            self.want("\\}")
            return Node("set", inner.args if inner.op == "list" else (inner,))
        if token == "|":
            self.bars += 1
            inner = self.sum()
            self.bars -= 1
            self.want("|")
            return Node("abs", (inner,))
        if token.startswith("\\"):
            return self.command(token[1:])
        if token.isalpha() and token.isascii():
            primes = 0
            while self.take("'"):
                primes += 1
            return Node("sym", (token + "'" * primes + self.subscript(),))
        raise Unread(f"{token!r} has no place")

    def subscript(self) -> str:
        if not self.take("_"):
            return ""
        if not self.take("{"):
            token = self.peek()
            self.place += 1
            return "_" + (str(token.args[0]) if isinstance(token, Node) else str(token))
        kept = []
        while not self.take("}"):
            token = self.peek()
            if token is None or token == "{":
                raise Unread("an open subscript")
            kept.append(str(token.args[0]) if isinstance(token, Node) else str(token))
            self.place += 1
        return "_" + "".join(kept)

    def bracket(self, opened: str) -> Node:
        inner = self.items(")", "]")
        closed = self.peek()
        self.want(")", "]")
        if inner.op != "list":
            if opened == "(" and closed == ")":
                return inner
            if opened == "[" and closed == "]":
                return inner
            raise Unread("brackets that do not match")
        parts = inner.args
        if opened == "(" and closed == ")":
            return Node("tuple", parts)
        if len(parts) == 2:
            return Node("interval", (*parts, opened == "[", closed == "]"))
        if opened == "[" and closed == "]":
            return Node("tuple", parts)
        raise Unread("brackets that do not match")

    def command(self, name: str) -> Node:
        if name == "frac":
            top = self.tex_digit()
            return Node("div", (top, self.tex_digit()))
        if name == "sqrt":
            degree = None
            if self.take("["):
                degree = self.sum()
                self.want("]")
            inner = self.argument()  # who writes \\sqrt10 means the root of ten
            return Node("root", (inner, degree or number("2")))
        if name == "cbrt":
            return Node("root", (self.argument(), number("3")))
        if name == "binom":
            top = self.tex_digit()
            return Node("call", ("binom", top, self.tex_digit()))
        if name in ("lfloor", "lceil"):
            inner = self.sum()
            self.want("\\rfloor" if name == "lfloor" else "\\rceil")
            return Node("call", ("floor" if name == "lfloor" else "ceil", inner))
        if name in ("pi", "infty", "emptyset"):
            return Node("set") if name == "emptyset" else Node("sym", ("\\" + name,))
        if name == "mathbb" and self.take("{"):
            letter = self.peek()
            self.place += 1
            self.want("}")
            return Node("sym", (f"\\mathbb{{{letter}}}",))
        if name.startswith("begin{"):
            return self.matrix()
        if name in _FUNCTIONS:
            return self.function(name)
        if name in _GREEK:
            return Node("sym", ("\\" + name + self.subscript(),))
        if name == "overline":
            self.want("{")
            inner = self.sum()
            self.want("}")
            return Node("call", ("overline", inner))
        raise Unread(f"the command \\{name}")

    def function(self, name: str) -> Node:
        base: Node | None = None
        exponent: Node | None = None
        while self.peek() in ("_", "^"):
            if self.take("_"):
                base = self.tex_digit()
            elif self.take("^"):
                exponent = self.argument()
        if name == "abs":
            return Node("abs", (self.argument(),))
        token = self.peek()
        if token in ("(", "[", "{"):
            inner = self.atom()
        else:
            sign = self.signed()
            inner = sign(self.product(implicit_only=True))
        arguments = inner.args if inner.op in ("tuple", "list", "set") else (inner,)
        name = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}.get(name, name)
        if name == "exp":
            called = Node("pow", (Node("sym", ("e",)), inner))
        else:
            called = Node("call", (name, *arguments) if base is None else (name, *arguments, base))
        if exponent is None:
            return called
        if exponent == Node("num", (Fraction(-1), None)) and "arc" + name in _FUNCTIONS:
            return Node("call", ("arc" + name, *arguments))
        return Node("pow", (called, exponent))

    def matrix(self) -> Node:
        rows: list[list[Node]] = [[]]
        while not str(self.peek()).startswith("\\end{"):
            rows[-1].append(self.sum())
            if self.take("\\\\"):
                rows.append([])
            elif not str(self.peek()).startswith("\\end{"):
                self.want("&")
        self.place += 1
        rows = [row for row in rows if row]
        if len({len(row) for row in rows}) != 1:
            raise Unread("a matrix whose rows differ in length")
        return Node("matrix", tuple(map(tuple, rows)))


def _residue(node: Node, modulus: int) -> Node:
    """n = 1 and mod = 3, as a list."""

    def reduced(each: Node) -> Node:
        if each.op == "rel":
            return Node("rel", (*each.args[:2], reduced(each.args[2])))
        return Node("num", (each.args[0] % modulus, None)) if each.op == "num" else each

    found = tuple(map(reduced, node.args)) if node.op == "list" else (reduced(node),)
    return Node("list", (*found, Node("rel", ("=", Node("sym", ("mod",)), number(str(modulus))))))


def _negative(node: Node) -> Node:
    return Node("num", (-node.args[0], node.args[1])) if node.op == "num" else Node("neg", (node,))
