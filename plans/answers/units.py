"""Units behind (or, of money, before) a number: split off, and compared where both answers name one.

A unit that only one side names is dropped. Known units of one dimension are converted (100 cm is 1 m), known ones
of two dimensions differ, and words that are no unit (`15 apples`) say nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

_TABLE = """
m 1 m metre metres meter meters|cm 1/100 m centimetre centimetres centimeter centimeters|
mm 1/1000 m millimeter millimeters millimetre millimetres|km 1000 m kilometre kilometres kilometer kilometers|
in 127/5000 m inch inches|ft 381/1250 m foot feet|yd 1143/1250 m yard yards|mi 201168/125 m mile miles|
s 1 s sec secs second seconds|ms 1/1000 s millisecond milliseconds|min 60 s mins minute minutes|
h 3600 s hr hrs hour hours|day 86400 s days|week 604800 s weeks|month 1 month months|year 12 month years yr yrs|
g 1 g gram grams gm|kg 1000 g kilogram kilograms kgs|mg 1/1000 g milligram milligrams|
lb 45359237/100000 g lbs pound pounds|oz 45359237/1600000 g ounce ounces|l 1 l L liter liters litre litres|
ml 1/1000 l mL milliliter milliliters millilitre millilitres|gallon 1 gallon gallons gal|
dollar 1 dollar dollars $ USD usd bucks|cent 1/100 dollar cents ¢|euro 1 euro euros € EUR|GBP 1 GBP £|
rupee 1 rupee rupees ₹ Rs rs|yuan 1 yuan RMB ¥ 元 yen|% 1/100 % percent percentage pct percentages|
degree 1 degree degrees deg ^\\circ °|rad 1 rad radian radians|°C 1 °C celsius|°F 1 °F fahrenheit|K 1 K kelvin|
N 1 N newton newtons|J 1 J joule joules|kJ 1000 J|W 1 W watt watts|kW 1000 W|V 1 V volt volts|
A 1 A amp amps ampere amperes|Ω 1 Ω ohm ohms \\Omega|Hz 1 Hz hertz|Pa 1 Pa pascal pascals|kPa 1000 Pa|eV 1 eV|
mol 1 mol moles mole|C 1 C coulomb coulombs|mph 1397/3125 m/s|kmh 5/18 m/s kph kmph|ha 10000 m2 hectare hectares|
acre 1 acre acres|th 1 th st nd rd
"""
KNOWN: dict[str, tuple[Fraction, str]] = {}
for _entry in _TABLE.split("|"):
    _name, _factor, _dimension, *_others = _entry.split()
    KNOWN |= {each: (Fraction(_factor), _dimension) for each in (_name, *_others)}
_MONEY = r"US\$|\$|€|£|¥|₹|Rs\.?|USD|EUR|RMB"
_BEFORE = re.compile(rf"^([-+]?)\s*({_MONEY})\s*([-+]?\s*(?:[\d.]|\\frac).*)$")
_POWER = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
_WORD = r"(?:[^\W\d_]++(?:'s)?|%|°C|°F|[¢元€£₹]|\$|\^\s*\\circ\s*[CF]?|\^\s*\{\s*\\circ\s*\}\s*[CF]?|\\Omega)"
_TEXT = r"\\text\s*\{[^{}\d]*\}"
_UNIT = re.compile(
    rf"^(.*?[\d)}}\]!|.]|.*?\\(?:pi|infty))(\s*)((?:(?:{_TEXT}|{_WORD}){_POWER}(?:\s*(?:/|\\cdot|-)\s*|\s*))+)$"
)
_NUMERIC = re.compile(r"[-+\d.,/ (){}eE^*:]*(?:\\(?:frac|times|cdot|overline|ldots|pm|sqrt|pi)[\d{}.,/ ()^*-]*)*")
_NOT_UNITS = "and or to x y z n k i e sin cos tan log ln exp pi sqrt mod base if where is not plus minus times"
_NEVER = set(_NOT_UNITS.split())
_FILLER_WORDS = "of the a an total each about in all more less only square cubic sq cu per units unit approximately"
_FILLERS = set(_FILLER_WORDS.split())


def split_unit(text: str, attached: bool = False) -> tuple[str, str]:
    """(the number or expression, its unit or ""); `attached`: a letter right behind a number (`5m`) is a unit, too."""
    unit = ""
    if money := _BEFORE.match(text):
        text, unit = (money[1] + money[3]).replace(" ", ""), money[2].rstrip(".")
        if not re.search(r"[A-Za-z]", text):
            return text, unit
        text = money[1] + money[3]
    found = _UNIT.match(text)
    if found is None:
        return text, unit
    head, gap, tail = found[1].strip(), found[2], found[3].strip()
    words = re.findall(r"[^\W\d_]+|%|°|\\circ|[$¢元€£₹]", re.sub(r"\\text", " ", tail))
    if head.endswith("\\") or not words or set(words) & _NEVER or re.search(r"\\[a-zA-Z]*$", head.removesuffix("\\pi")):
        return text, unit
    wrapped = tail.startswith(("\\text", "%", "^", "°", "$", "¢", "元", "€", "£", "₹"))
    if _NUMERIC.fullmatch(head.rpartition("=")[2]) is None and (
        "circ" in tail or not (wrapped or all(word in KNOWN and len(word) > 1 for word in words))
    ):
        return text, unit
    if not wrapped and words[0].isascii():
        # `5 m` and `5 apples` are units, `5m` and `5ab` products of letters; `5cm` can be both and is a unit.
        if words[0] not in KNOWN and (len(words[0]) == 1 or not gap):
            return text, unit
        if len(words[0]) == 1 and not gap and not attached:
            return text, unit
    return head, unit or tail


def _parts(unit: str) -> tuple[Fraction, Counter[str]] | None:
    """The factor and the dimensions of a unit, or None if a word of it is not known."""
    unit = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", unit)
    unit = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)\s*([CF])(?![a-zA-Z])", r" °\1 ", unit)
    unit = re.sub(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ", " degree ", unit).replace("degrees", "degree")
    unit = re.sub(
        r"degree\s+([CF]|celsius|fahrenheit)(?![a-z])", lambda found: "°" + found[1][0].upper(), unit, flags=re.I
    )
    factor, dimensions, sign, power = Fraction(1), Counter[str](), 1, 1
    last: tuple[Fraction, str, int] | None = None
    for token in re.findall(r"°[CF]|[A-Za-z]+|%|[$¢元€£₹¥]|\\Omega|/|\^\s*\{?\s*-?\d", unit):
        if token == "/" or token == "per":
            sign = -1
        elif token[0] == "^":
            exponent = int(re.sub(r"[^-\d]", "", token))
            if last is None:
                return None
            factor *= last[0] ** (last[2] * (exponent - 1))
            dimensions[last[1]] += last[2] * (exponent - 1)
        elif token.lower() in ("square", "sq", "squared"):
            power = 2
        elif token.lower() in ("cubic", "cu", "cubed"):
            power = 3
        else:
            known = KNOWN.get(token) or KNOWN.get(token.lower())
            if known is None:
                if token.lower() in _FILLERS:
                    continue
                return None
            last = (known[0], known[1], sign * power)
            factor *= known[0] ** (sign * power)
            dimensions[known[1]] += sign * power
            power = 1
    spelled = Counter[str]()
    for name, times in dimensions.items():
        for part, exponent in {"m/s": (("m", 1), ("s", -1)), "m2": (("m", 2),)}.get(name, ((name, 1),)):
            spelled[part] += exponent * times
    return factor, Counter({name: times for name, times in spelled.items() if times})


def is_just(unit: str, name: str) -> bool:
    """Whether a unit is nothing but the hundredth (`%`) or the degree of an angle (`degree`)."""
    found = _parts(unit) if unit else None
    return found is not None and dict(found[1]) == {name: 1}


def factor_between(unit: str, other: str) -> Fraction | None:
    """What turns a number of `other` into one of `unit`: 1 where either is not known, None if the dimensions differ."""
    one, two = (_parts(each) if each else None for each in (unit, other))
    if one is None or two is None or not one[1] or not two[1]:
        return Fraction(1)
    return two[0] / one[0] if one[1] == two[1] else None
