"""Random pairs of numbers in many notations, of which the truth is known, and what the table of cases is like."""

import random
from fractions import Fraction

import pytest

from rlplan.benchmarks.verdicts import read_cases
from rlplan.executor.rewards.kinds.math_reward import judge

FIRST_SEED = 341

WRAPPINGS = (
    "\\boxed{%s}",
    "$\\boxed{%s}$",
    "\\[\\boxed{ %s }\\]",
    "\\fbox{%s}",
    "\\boxed{x = %s}",
    "\\boxed{\\boxed{%s}}",
    "\\boxed{31337}, no, wait.\nIt is \\boxed{%s}",
    "<think>17? \\boxed{31337}</think>\n<answer>%s</answer>",
    "<answer>$%s$</answer>",
    "The answer is %s.",
    "So the final answer is: $%s$",
    "**Answer:** %s",
    "### Final Answer\n%s",
    "The answer is %s, because 3 steps lead there.",
    "Step 1: 2+2=4.\nTherefore, the answer is \\(%s\\).",
    "答案是%s。",
    "最终答案：$%s$",
    "La respuesta es %s.",
    "La réponse finale est %s.",
    "Die Antwort ist %s.",
    "A resposta é %s.",
    "La risposta è %s.",
    "Ответ: %s",
    "答えは%sです。",
    "정답은 %s입니다.",
    "Đáp án là %s.",
    "%s",
    "x = %s",
    "<b>%s</b>",
    "#### %s",
)
UNITS = ("", "", "\\text{ cm}", " apples", " km/h")


def notations(number: Fraction, drawn: random.Random) -> list[str]:
    """Ways to write a number that are all that number."""
    sign, top, bottom = "-" if number < 0 else "", abs(number.numerator), number.denominator
    if bottom == 1:
        groups = f"{top:,}"
        found = [f"{top}", f"{top}.0", f"\\frac{{{3 * top}}}{{3}}", f"{2 * top}/2", f"\\text{{{top}}}"]
        found += [groups, groups.replace(",", "{,}"), groups.replace(",", "\\,"), groups.replace(",", " ")]
        found.append("".join(chr(0xFF10 + int(digit)) for digit in str(top)))
        if top > 9:
            found += [
                f"{str(top)[0]}.{str(top)[1:]}{exponent % (len(str(top)) - 1)}" for exponent in ("e%d", " × 10^%d")
            ]
            found.append(f"{str(top)[0]}.{str(top)[1:]}\\times 10^{{{len(str(top)) - 1}}}")
        return [sign + each for each in found]
    times = drawn.choice((1, 2, 3))
    found = [f"{top}/{bottom}", f"\\frac{{{top * times}}}{{{bottom * times}}}", f"\\dfrac{{{top}}}{{{bottom}}}"]
    if top < 10 and bottom < 10:
        found.append(f"\\frac{top}{bottom}")
    if top > bottom:
        found += [f"{top // bottom} {top % bottom}/{bottom}", f"{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}"]
    if bottom in (2, 4, 5, 8, 10, 25):
        found += [f"{float(abs(number))}", f"{float(abs(number))}00"]
    return [sign + each for each in found]


def drawn_number(drawn: random.Random) -> Fraction:
    if drawn.random() < 0.5:
        return Fraction(drawn.choice((drawn.randint(-30, 30), drawn.randint(1000, 10**9), -drawn.randint(1000, 10**6))))
    return Fraction(drawn.choice((-1, 1)) * drawn.randint(1, 60), drawn.choice((2, 3, 4, 5, 6, 7, 8, 9, 25)))


def test_the_table_names_sources_and_is_balanced():
    lines = read_cases("math")
    assert len({line["case"] for line in lines}) == len(lines) and all(line["source"] for line in lines)
    counts = [sum(line["expect"] == expect for line in lines) for expect in (0, 1)]
    assert min(counts) > 0.8 * max(counts)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 4))
def test_a_number_is_itself_in_any_notation_and_no_other(seed):
    drawn = random.Random(seed)
    wrong = []
    for _ in range(150):
        number = drawn_number(drawn)
        near = (
            number + 1,
            -number,
            number * 10,
            number / 10,
            number + Fraction(1, 3),
            number * 2,
            1 / (number or Fraction(1, 7)),
        )
        other = number if drawn.random() < 0.5 else drawn.choice(near)
        answer = drawn.choice(notations(number, drawn))
        response = drawn.choice(WRAPPINGS) % (drawn.choice(notations(other, drawn)) + drawn.choice(UNITS))
        if judge("", response, answer).reward != float(number == other):
            wrong.append((answer, response, number == other))
    assert wrong == [], f"seed {seed}"
