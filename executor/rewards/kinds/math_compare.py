"""Whether what a response says is the row's answer, by the type of the answer.

Numbers and expressions are compared in `math_numeric`; here are their structures: choices and text, units, equations,
lists, sets, tuples, intervals and inequalities. math-verify is asked only for what the grammar does not read, and never
about huge powers or plain letters.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import mpmath

from ....plans.answers.gold_math import LONGEST_LATEX, Gold, parsed, typed, value
from ....plans.answers.math_numbers import Node, replaced
from ....plans.answers.math_text import words_of
from ....plans.answers.units import factor_between, is_just
from .math_forms import OPPOSITE, REALS, Ends, as_intervals, is_order, plain, real, variable_of
from .math_numeric import DIGITS, NoValue, at, equal, symbols

SETS_IN_WORDS = {
    **dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions", "empty set"), Node("set")),
    **dict.fromkeys(("all real numbers", "all reals", "every real number", "real numbers"), REALS),
}


_MOST_MATCHED = 50
"""Items of a list or set that are compared one by one; longer ones must hold exact numbers."""
_TIME = re.compile(r"\d{1,2}:[0-5]\d")
_RESULT = re.compile(r"[^=<>]*=([^=<>]*)")
"""Of \\dim V = 6, whose left side is not read, the 6."""


def same(gold: Gold, text: str) -> tuple[bool, str]:
    """Whether a response's answer is the row's, and the rule that says so."""
    given = typed(text)
    if given is None:
        return False, "nothing that is an answer"
    if gold.kind == "choice":
        return _same_choice(gold, given)
    if given.kind == "choice" and given.words:
        # \textbf{(B)}\ 12 answers 12; the letter is a label.
        given = typed(given.text) or given
    if gold.kind == "text" or given.kind == "text":
        return _same_text(gold, given)
    if _TIME.fullmatch(gold.text):
        return given.text.lstrip("0") == gold.text.lstrip("0"), "a time of day, or a ratio that looks like one"
    if gold.node is None or given.node is None:
        if given.kind == "choice":
            return _letter(gold) == given.letter, "letters"
        if gold.kind == "number" and (right := _RESULT.fullmatch(given.text)):
            return same(gold, right[1])
        return _by_math_verify(gold, given)
    readings = [given]
    if gold.kind == "number":
        readings += [each for each in (typed(text, attached=True), _with_comma(given)) if each is not None]
    for reading in readings:
        if reading.node is None:
            continue
        found = _same_nodes(gold.node, gold.unit, reading.node, reading.unit)
        if found:
            return True, "equal in value"
        if found is None and _by_math_verify(gold, reading)[0]:
            return True, "math-verify"
    return False, "differs"


def _with_comma(given: Gold) -> Gold | None:
    """Of `3,5` the number three and a half and of `(1,234)` the whole number, where the row's answer is one number."""
    if given.kind == "list" and (comma := re.fullmatch(r"([+-]?\d+),(\d+)", given.text)):
        return typed(f"{comma[1]}.{comma[2]}")
    grouped = re.fullmatch(r"\(\s*([+-]?\d{1,3}(?:,\d{3})+(?!\d)[^,()]*)\)", given.text)
    return typed(grouped[1]) if grouped else None


def _letter(gold: Gold) -> str:
    """The letter that an answer is, in capitals; "" if it is none."""
    return gold.letter or (gold.text.upper() if re.fullmatch("[A-Za-z]", gold.text) else "")


def _same_choice(gold: Gold, given: Gold) -> tuple[bool, str]:
    if letter := _letter(given):
        return letter == gold.letter, "the letter of the choice"
    inner = typed(gold.text) if gold.words else None
    if inner is None or inner.kind == "choice":
        return bool(gold.words) and gold.words == given.words, "the words of the choice"
    return same(inner, given.text)[0], "the words of the choice"


def _same_text(gold: Gold, given: Gold) -> tuple[bool, str]:
    one, two = (words_of(each.text) for each in (gold, given))
    if one == two or {one, *_listed_letters(one)} & {two, *_listed_letters(two)}:
        return True, "text"
    as_nodes = [each.node or SETS_IN_WORDS.get(words) for each, words in ((gold, one), (given, two))]
    if all(as_nodes) and gold.kind != given.kind:
        assert as_nodes[0] is not None and as_nodes[1] is not None
        return bool(_same_nodes(as_nodes[0], "", as_nodes[1], "")), "text that names a set"
    if one in SETS_IN_WORDS and SETS_IN_WORDS.get(one) == SETS_IN_WORDS.get(two):
        return True, "text that names a set"
    products = [_product(each) for each in (gold, given)]
    if gold.kind != given.kind and products[0] is not None and products[1] is not None:
        return bool(_same_nodes(products[0], "", products[1], "")), "a product of letters"
    return False, "text"


def _listed_letters(words: str) -> tuple[str, ...]:
    """`a, c` and `a and c` as `ac`, for several choices; `i and ii` as `i,ii`."""
    letters = re.split(r"\s*(?:,|;|and|&|\s)\s*", words)
    if len(letters) > 1 and all(re.fullmatch("[ivx]+", each) for each in letters):
        return (",".join(sorted(letters)),)
    return ("".join(sorted(letters)),) if len(letters) > 1 and all(len(each) == 1 for each in letters) else ()


def _product(gold: Gold) -> Node | None:
    """`xy` as x times y; None of longer words, which are not mathematics."""
    if gold.node is not None:
        return gold.node
    if re.fullmatch(r"[a-zA-Z]{2,3}", gold.text) and not re.search("[aeiou]", gold.text[1:]):
        return Node("mul", tuple(Node("sym", (letter,)) for letter in gold.text))
    return None


# Trees ---------------------------------------------------------------------------------------------------------------


def _same_nodes(gold: Node, unit: str, given: Node, given_unit: str) -> bool | None:
    """Whether two trees with units are one answer; None if that cannot be told."""
    for name, turned in (("%", lambda node: _scaled(node, Fraction(1, 100))), ("degree", _in_degrees)):
        if is_just(unit, name) != is_just(given_unit, name):
            # 50 %, 50 and 0.5 answer the same question.
            pair = (turned(gold), given) if is_just(unit, name) else (gold, turned(given))
            return _first(_same(*each) for each in ((gold, given), pair))
    factor = factor_between(unit, given_unit)
    if factor is None:
        return False
    return _same(gold, given if factor == 1 else _scaled(given, factor))


def _first(found: Iterator[bool | None]) -> bool | None:
    answers = list(found)
    return True if True in answers else False if False in answers else None


def _in_degrees(node: Node) -> Node:
    return Node("degree", (node,))


def _scaled(node: Node, factor: Fraction) -> Node:
    if node.op == "num":
        return Node("num", (node.args[0] * factor, node.args[1] and node.args[1] * factor))
    if node.op == "rel":
        return Node("rel", (*node.args[:2], _scaled(node.args[2], factor)))
    return Node("mul", (node, Node("num", (factor, None))))


def _same(gold: Node, given: Node) -> bool | None:
    gold, given = plain(gold), plain(given)
    if gold.op == "based" or given.op == "based":
        return _same_based(gold, given)
    if any(is_order(each) or each.op in ("union", "interval") for each in (gold, given)):
        ends, others = (as_intervals(each) for each in (gold, given))
        if ends is not None and others is not None:
            return _same_intervals(ends, others) and _same_variable(gold, given)
        if ends is None and others is None and gold.op == given.op == "rel":
            return _same_inequality(gold, given)
        if gold.op == given.op == "chain" and len(gold.args) == len(given.args):
            pairs = [zip(gold.args, order, strict=True) for order in (given.args, given.args[::-1])]
            return _first(_all(_same_inequality(*pair) for pair in each) for each in pairs)
        if is_order(gold) or gold.op in ("union", "interval"):
            return False if ends is not None and others is None and given.op != "rel" else None
    if gold.op in ("rel", "chain"):
        return _same_equation(gold, given)
    if given.op in ("rel", "chain"):
        right = _right_side(given, gold)
        return False if right is None else _same(gold, right)
    if gold.op == "matrix" or given.op == "matrix":
        return _same_matrix(gold, given)
    if gold.op in ("list", "set", "tuple") or given.op in ("list", "set", "tuple"):
        return _same_items(gold, given)
    return equal(gold, given)


def _same_based(gold: Node, given: Node) -> bool | None:
    """Digits and base must be the same; of two numbers one may leave its base out."""
    if gold.op == given.op:
        return gold.args == given.args
    based, other = (gold, given) if gold.op == "based" else (given, gold)
    bare = value(other)
    if bare is None or bare.denominator != 1:
        return False
    digits, base = based.args
    if digits.lstrip("-").isdigit() and bare == int(digits):
        return True
    return gold.op != "based" and bare == int(digits, base)


def _same_matrix(gold: Node, given: Node) -> bool | None:
    def rows(node: Node) -> tuple[tuple[Node, ...], ...] | None:
        if node.op == "matrix":
            return node.args
        return tuple((each,) for each in node.args) if node.op == "tuple" else None

    one, two = rows(gold), rows(given)
    if one is None or two is None:
        return False
    if "tuple" in (gold.op, given.op) and 1 in (len(one), len(two)):
        # A row or a column may be written as a tuple.
        one, two = (tuple((each,) for row in rows_of for each in row) for rows_of in (one, two))
    if [len(row) for row in one] != [len(row) for row in two]:
        return False
    pairs = [pair for left, right in zip(one, two, strict=True) for pair in zip(left, right, strict=True)]
    return _all(_same(*pair) for pair in pairs)


def _all(found: Iterator[bool | None]) -> bool | None:
    unknown = False
    for each in found:
        if each is False:
            return False
        unknown = unknown or each is None
    return None if unknown else True


def _same_items(gold: Node, given: Node) -> bool | None:
    """A tuple is ordered, a set and a list are not; a list without brackets takes on the order of a tuple."""
    ops = {gold.op, given.op}
    if not ops <= {"list", "set", "tuple"}:
        return False  # plain has unwrapped a list of one
    if ops == {"set", "tuple"}:
        return False
    one, two = ([_value_of(each) for each in node.args] for node in (gold, given))
    if gold.op == "tuple" or (_by_name(gold) and not _names_of(given)):
        one, two = _by_name(gold) or one, _by_name(given) or two
        return len(one) == len(two) and _all(_same(*pair) for pair in zip(one, two, strict=True))
    names = [_names_of(node) for node in (gold, given)]
    if names[0] and names[1] and len(names[0]) == len(one) > 1 and len(set(names[0])) > 1:
        if sorted(names[0]) != sorted(names[1]) or len(one) != len(two):
            return False
        ordered = dict(zip(names[1], two, strict=True))
        return _all(_same(left, ordered[name]) for name, left in zip(names[0], one, strict=True))
    bases = [{name.partition("_")[0] for name in each} for each in names]
    if names[0] and names[1] and bases[0] != bases[1]:
        return False
    if "set" in ops:
        one, two = _distinct(one), _distinct(two)
    return _matched(one, two)


def _value_of(node: Node) -> Node:
    """Of `x = 3` the 3."""
    return node.args[2] if node.op == "rel" and node.args[0] == "=" and _is_name(node.args[1]) else node


def _is_name(node: Node) -> bool:
    """A variable, one with an argument, a tuple of them, an inverse or a derivative: x, a_n, f(x), (x, y), dy/dx."""
    if node.op == "div":
        return all(part.op == "mul" and part.args[0] == Node("sym", ("d",)) and _is_name(part) for part in node.args)
    if node.op == "pow":
        return node.args[0].op == "sym" and value(node.args[1]) == -1
    return node.op == "sym" or (
        node.op in ("mul", "tuple") and all(part.op == "tuple" or _is_name(part) for part in node.args)
    )


def _names_of(node: Node) -> list[str]:
    """Names that the items of a list are assigned to, if they are."""
    equations = [each for each in node.args if isinstance(each, Node) and each.op == "rel" and each.args[0] == "="]
    return [str(each.args[1].args[0]) for each in equations if each.args[1].op == "sym"]


def _by_name(node: Node) -> list[Node] | None:
    """Of `y = 2, x = 1` the values as a tuple gives them: by name, if the names are neighbours in the alphabet, else
    (n and k, r and theta) as written; None of other items."""
    names = _names_of(node)
    if len(names) != len(node.args) or len(set(names)) != len(names) or not names:
        return None
    values = dict(zip(names, (each.args[2] for each in node.args), strict=True))
    neighbours = all(len(name) == 1 for name in names) and ord(max(names)) - ord(min(names)) == len(names) - 1
    return [values[name] for name in (sorted(names) if neighbours else names)]


def _distinct(items: list[Node]) -> list[Node]:
    exact = {value(item): item for item in items}
    if None not in exact or len(items) > _MOST_MATCHED:
        return list(exact.values()) if None not in exact else items
    kept: list[Node] = []
    for item in items:
        if not any(item == other or _same(other, item) for other in kept):
            kept.append(item)
    return kept


def _matched(one: list[Node], two: list[Node]) -> bool | None:
    """Whether each item has a partner of its own."""
    if len(one) != len(two):
        return False
    exact, others = (Counter(value(each) for each in items) for items in (one, two))
    if exact == others and None not in exact:
        return True
    if len(one) > _MOST_MATCHED:
        return None if None in exact or None in others else False
    left = list(two)
    unknown = False
    for item in one:
        if item.op == "dots":
            partner = next((each for each in left if each.op == "dots"), None)
        else:
            answers = [(each, _same(item, each)) for each in left if each.op != "dots"]
            unknown = unknown or any(answer is None for _, answer in answers)
            partner = next((each for each, answer in answers if answer), None)
        if partner is None:
            return None if unknown else False
        left.remove(partner)
    if any(item.op == "dots" for item in one):
        # What is left out follows from what is written, so here the order counts.
        return _all(True if a.op == b.op == "dots" else _same(a, b) for a, b in zip(one, two, strict=True))
    return True


# Equations -----------------------------------------------------------------------------------------------------------


def _right_side(given: Node, gold: Node) -> Node | None:
    """The side of a response's equation that answers a row whose answer is none.

    Of `x = 2 + 3 = 5` the 5; of `2x = 10` and `x - 3y = 0`, which are yet to be solved, nothing; of `pi ~ 3.14` the
    exact side, or the other if that is the row's answer and both are near each other.
    """
    relations = given.args if given.op == "chain" else (given,)
    signs = {each.args[0] for each in relations}
    if not signs <= {"=", "~", "in"}:
        return None
    for _, one, two in (each.args for each in relations):
        if not symbols(one) and not symbols(two) and not _near(one, two):
            return None  # 41 = 42 says nothing
    last = relations[-1]
    if last.args[0] == "~" and not _is_name(last.args[1]):
        exact, rounded = last.args[1:]
        if _near(exact, rounded):
            exact, rounded = (rounded, exact) if _same(gold, rounded) else (exact, rounded)
            return Node(*exact)
        return None
    left = relations[0].args[1]
    if len(relations) == 1 and symbols(left) and (left.op == "neg" or _has_number(left)):
        unsolved = left.op in ("neg", "mul") or value(last.args[2]) in (0, 1)
        if unsolved:
            return None
    right = last.args[2]
    return right if isinstance(right, Node) else None


def _has_number(node: Node) -> bool:
    """Whether terms have coefficients or constants, as those of an equation that is yet to be solved; f(2) has none."""
    if node.op == "mul":
        return node.args[0].op == "num" or any(
            _has_number(part) for part in node.args if part.op not in ("num", "tuple")
        )
    if node.op in ("add", "neg", "div"):
        return any(part.op == "num" or _has_number(part) for part in node.args)
    return False


def _near(one: Node, two: Node) -> bool:
    try:
        with mpmath.workdps(DIGITS):
            left, right = at(one, {}), at(two, {})
            return bool(abs(left - right) <= abs(left) / 100)
    except NoValue:
        return False


def _same_equation(gold: Node, given: Node) -> bool | None:
    """An assignment is its value, and its name counts if the response names one, too; other equations are the same if
    the differences of their sides are multiples of each other."""
    first, last = (gold.args[0], gold.args[-1]) if gold.op == "chain" else (gold, gold)
    if first.args[0] in ("in", "!="):
        return None if given.op == "rel" else _same(first.args[2], given) if first.args[0] == "in" else None
    name, right = first.args[1], last.args[2]
    if given.op not in ("rel", "chain"):
        return _same(right, given) if _is_name(name) else False
    opening, closing = (given.args[0], given.args[-1]) if given.op == "chain" else (given, given)
    if opening.args[0] not in ("=", "~"):
        return False
    if _is_name(name) and _is_name(opening.args[1]):
        if name == opening.args[1] or str(name).lower() == str(opening.args[1]).lower():
            return _same(right, closing.args[2])
        if Node("sym", ("y",)) in (name, opening.args[1]) and {name.op, opening.args[1].op} == {"sym", "mul"}:
            return _same(right, closing.args[2])  # y = 2x for f(x) = 2x
        if not symbols(right) and not symbols(closing.args[2]):
            return False
    if gold.op == "chain" or given.op == "chain":
        return None
    return _proportional(gold, given, signed=False)


def _difference(relation: Node) -> Node:
    return Node("add", (relation.args[1], Node("neg", (relation.args[2],))))


def _proportional(gold: Node, given: Node, signed: bool) -> bool | None:
    """Whether left minus right of the one is a (positive) multiple of that of the other, at drawn points."""
    one, two = _difference(gold), _difference(given)
    names = symbols(one)
    if not names or names != symbols(two):
        return False if symbols(two) != names else None
    # Cross-multiplied with a point, so that a constant factor drops out: f(x) g(p) = g(x) f(p).
    point = {name: Node("num", (Fraction(7 + 4 * place, 5), None)) for place, name in enumerate(sorted(names))}
    f, g = (replaced(side, lambda name: point.get(name, Node("sym", (name,)))) for side in (one, two))
    if signed:
        try:
            with mpmath.workdps(DIGITS):
                if mpmath.re(at(f, {})) * mpmath.re(at(g, {})) <= 0:
                    return False
        except NoValue:
            return None
    return equal(Node("mul", (one, g)), Node("mul", (two, f)))


# Intervals and inequalities ------------------------------------------------------------------------------------------


def _same_variable(gold: Node, given: Node) -> bool:
    one, two = (variable_of(each) if is_order(each) else None for each in (gold, given))
    return one is None or two is None or one.lower() == two.lower()


def _same_intervals(one: list[Ends], two: list[Ends]) -> bool | None:
    if len(one) != len(two):
        return False
    try:
        one, two = (sorted(ends, key=lambda each: (real(each[0]), real(each[1]))) for ends in (one, two))
    except NoValue:
        if len(one) > 1:
            return None
    return _all(
        _all(iter((left[2:] == right[2:], _same(left[0], right[0]), _same(left[1], right[1]))))
        for left, right in zip(one, two, strict=True)
    )


def _same_inequality(gold: Node, given: Node) -> bool | None:
    """f < g as f - g < 0: the sides' differences must be positive multiples of each other, or negative ones turned."""
    sign, other = gold.args[0], given.args[0]
    if sign not in OPPOSITE or other not in OPPOSITE:
        return None
    if sign == other and _proportional(gold, given, signed=sign not in ("=", "!=")):
        return True
    turned = Node("rel", (OPPOSITE[other], given.args[2], given.args[1]))
    return sign == turned.args[0] and _proportional(gold, turned, signed=sign not in ("=", "!="))


# math-verify ---------------------------------------------------------------------------------------------------------

_TOWER = re.compile(r"\^\s*(?:\{[^{}^]*(?:\^|\d{5})|\w\s*\^|\d{5})|[\w)}]\s*!|\\binom|\d{400}")
"""What SymPy would compute for hours: powers of powers, long exponents, factorials."""


def _by_math_verify(gold: Gold, given: Gold) -> tuple[bool, str]:
    """What math-verify says of two LaTeX expressions of which the grammar reads at most one."""
    one_way, other = (re.sub(r"\{(\w)\}| ", r"\1", each.text) for each in (gold, given))
    if one_way == other:
        return True, "equal as written"
    if any(len(each.text) > LONGEST_LATEX for each in (gold, given)):
        return False, "differs as written, and is too long to compute"
    if any(_TOWER.search(each.text) or not re.search(r"[\\\d=<>^]", each.text) for each in (gold, given)):
        return False, "differs as written, and too large to compute"
    if any("\\ldots" in each.text or "..." in each.text for each in (gold, given)):
        return False, "differs as written, and an ellipsis is not guessed"
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    one, two = (list(parsed(each.text)) for each in (gold, given))
    if not one or not two:
        return False, "math-verify does not read it"
    return bool(
        verify(one, two, float_rounding=6, numeric_precision=50, strict=True, timeout_seconds=None)
    ), "math-verify"
