"""Mathematics as people and models write it, in one spelling: LaTeX without layout, in ASCII.

Answers of rows and of responses both go through here, so that a fraction is the same whether it is `\\dfrac12` or `½`.
"""

from __future__ import annotations

import html
import re
import unicodedata

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ", "0123456789+-()nx", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "×": "\\times ", "✕": "\\times ", "·": "\\cdot ",
    "⋅": "\\cdot ", "∙": "\\cdot ", "•": "\\cdot ", "÷": "/", "∕": "/", "⁄": "/", "√": "\\sqrt ", "∛": "\\sqrt[3]",
    "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "⩽": "\\le ", "⩾": "\\ge ", "≦": "\\le ", "≧": "\\ge ", "≠": "\\ne ",
    "≈": "\\approx ", "≃": "\\approx ", "±": "\\pm ", "∓": "\\mp ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ",
    "∅": "\\emptyset ", "°": "^\\circ ", "º": "^\\circ ", "˚": "^\\circ ", "…": "\\ldots ", "⋯": "\\ldots ",
    "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "∠": "\\angle ", "△": "\\triangle ",
    "→": "\\to ",
    "⟨": "(", "⟩": ")", "、": ",", "。": ". ", "．": ".", "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'",
    "∑": "\\sum ", "∫": "\\int ", "∏": "\\prod ", "∂": "\\partial ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}",
    "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}", "∖": "\\setminus ",
    "\u200b": "", "\u200c": "", "\u200d": "", "\u2060": "", "\ufeff": "", "\u2061": "", "\u2062": "", "\u00ad": "",
}  # fmt: skip
_GREEK = {
    chr(code): "\\" + unicodedata.name(chr(code)).rsplit(" ", 1)[-1].lower() + " "
    for code in (*range(0x3B1, 0x3C2), *range(0x3C3, 0x3CA))
}
_GREEK |= {"λ": "\\lambda ", "ϕ": "\\phi ", "ϵ": "\\epsilon ", "ϑ": "\\theta "}
_GREEK |= {
    "Γ": "\\Gamma ",
    "Δ": "\\Delta ",
    "Θ": "\\Theta ",
    "Λ": "\\Lambda ",
    "Π": "\\Pi ",
    "Σ": "\\Sigma ",
    "Ω": "\\Omega ",
}
_CHARACTERS = str.maketrans(_SIGNS | _GREEK)
_SUPER, _SUB = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+"), re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_OVERLINED = re.compile(r"((?:\d\u0305)+)")

TAGS = re.compile(r"</?(?:b|strong|i|em|u|p|br|span|div|code|mark|center|h\d)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_LAYOUT = re.compile(
    r"\\(?:text)?color(?:box)?\{[^{}]*\}|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|bigl|bigr|Bigl|Bigr|biggl|biggr|big|Big|bigg|Bigg|left|right"
    r"|middle|mleft|mright|phantom\{[^{}]*\}|hspace\*?\{[^{}]*\}|vspace\*?\{[^{}]*\}|noindent|boldsymbol|bm|mathbf|bold"
    r"|mathit|mathnormal|mathsf|mathcal|mathtt|rm|bf|it|hat|widehat|vec|overrightarrow|tiny|small|normalsize|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])\.?"
)
_SPACES = re.compile(
    r"\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|space|nobreakspace)(?![a-zA-Z])|\\[;:> ]|~"
)
_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge",
    "neq": "ne", "cdots": "ldots", "dots": "ldots", "dotsc": "ldots", "dotsb": "ldots", "textbf": "text",
    "textit": "text", "textrm": "text", "texttt": "text", "textsf": "text", "textnormal": "text", "mbox": "text",
    "hbox": "text", "emph": "text", "underline": "text", "mathrm": "text", "operatorname": "text",
    "varnothing": "emptyset",
    "dbinom": "binom", "tbinom": "binom", "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "lparen": "(",
    "rparen": ")", "ast": "cdot", "simeq": "approx", "thickapprox": "approx", "div": "/",
    "lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "colon": ":", "varphi": "phi",
    "varepsilon": "epsilon", "vartheta": "theta", "bar": "overline", "overbar": "overline",
    "land": "\\text{and}", "lor": "\\text{or}",
    "wedge": "\\text{and}", "vee": "\\text{or}", "lang": "(", "rang": ")", "langle": "(", "rangle": ")", "imath": "i",
    "arcctg": "arccot", "tg": "tan", "ctg": "cot", "arctg": "arctan", "cosec": "csc", "euro": "€", "pounds": "£",
    "textdollar": "$", "percent": "%", "infin": "infty", "bigcup": "cup", "backslash": "setminus",
}  # fmt: skip
_HABITS = (
    (re.compile(r"\^\s*\{?\s*\\(?:text|mathrm|rm)\s*\{(?:st|nd|rd|th)\}\s*\}?"), ""),
    (re.compile(r"\{([^{}]*)\\over(?![a-z])([^{}]*)\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"^([^{}]*)\\over(?![a-z])([^{}]*)$"), r"\\frac{\1}{\2}"),
    (re.compile(r"\{([^{}]*)\\choose(?![a-z])([^{}]*)\}"), r"\\binom{\1}{\2}"),
    (
        re.compile(r"(?:\b|\\(?:text|mathrm)\{)C\}?\s*_\s*\{?((?<=\{)\w+|\w)\}?\s*\^\s*\{?((?<=\{)\w+|\w)\}?"),
        r"\\binom{\1}{\2}",
    ),
    (re.compile(r"\bC\((\d+),\s*(\d+)\)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\^?\s*\\degree(?![a-z])|(?<=\d)\s*\\circ(?![a-z])"), r"^\\circ "),
    (re.compile(r"(?<=\S)\s*,?\s*(?:\\(?:text|mathrm)\s*\{\s*,?\s*for (?:all|every|any)\b|\\forall).*$"), ""),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"^\s*(?:\\approx|\\sim|~|about|approximately|roughly)(?![a-z])\s*", re.IGNORECASE), ""),
    (re.compile(r"\s*\(?\s*(?:\\text\s*\{\s*)?\(?(?:in )?[Bb]ase[ -]([a-z]+|\d{1,2})\)?\s*\}?\s*\)?$"), r"_{\1}"),
)
"""Ordinals, \\over, binomials, an x for times, a word for about, a base in words: what stands for it."""
MAGNITUDES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(rf"(?<=\d)\s*(\\text\s*\{{\s*)?({'|'.join(MAGNITUDES)})(?![a-zA-Z])")
_TEXT_WITH_POWERS = re.compile(r"\\text\s*\{((?:[^{}]|\^\s*\{[^{}]*\})*\^(?:[^{}]|\^\s*\{[^{}]*\}|\{[^{}]*\})*)\}")
_LINES = re.compile(r"\\(?:begin|end)\{(?:aligned|align|gathered|gather|split|cases|equation)\*?\}")
_SYSTEM = re.compile(r"\\\{\s*\\begin\{(?:array|matrix)\}(?:\{[lcr| ]*\})?(.*?)\\end\{(?:array|matrix)\}")
"""Equations one below the other, behind a brace."""
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_GROUPS = r"\d{1,3}(?:%s\d{3})+(?!\d)"
_SPACED = re.compile(r"(?<![\d.,])" + _GROUPS % r"(?: |\\,|\\ |\u00a0|\u202f|\u2009|'|\{,\}|,\\!)")
"""Groups of three digits that no list is written with; plain commas are looked at in `groups_joined`."""
_COMMAS = re.compile(r"(?<![\d.,])" + _GROUPS % ",")
_BRACED_COMMA = re.compile(r"(?<=\d)\{\s*,\s*\}(?=\d)|(?<=\d),\\!(?=\d)")


def in_ascii(text: str) -> str:
    """The text with LaTeX or ASCII for what Unicode has signs of: minus, fractions, powers, roots, full width."""
    if text.isascii():
        return text
    text = _OVERLINED.sub(lambda found: "\\overline{" + found[1].replace("\u0305", "") + "}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)
    text = _SUPER.sub(lambda found: "^{" + "".join(map(_SUPERSCRIPTS.__getitem__, found[0])) + "}", text)
    text = _SUB.sub(lambda found: "_{" + "".join(map(_SUBSCRIPTS.__getitem__, found[0])) + "}", text)
    kept = []
    for before, sign in zip(" " + text, text, strict=False):
        if unicodedata.category(sign) == "No" and "⁄" in (parts := unicodedata.normalize("NFKC", sign)):
            top, _, bottom = parts.partition("⁄")
            kept.append((" " if before.isdigit() else "") + f"\\frac{{{top}}}{{{bottom or '1'}}}")
        elif unicodedata.category(sign) == "Nd":
            kept.append(str(unicodedata.digit(sign)))
        else:
            kept.append(sign)
    return unicodedata.normalize("NFKC", "".join(kept).translate(_CHARACTERS)).translate(_CHARACTERS)


def _renamed(found: re.Match[str]) -> str:
    name = _RENAMED.get(found[1])
    if name is None:
        return "\\" + found[1]
    if name in "{}":
        return "\\" + name
    return "\\" + name if name.isalpha() and name != "i" else name


def one_spelling(text: str) -> str:
    """The text of one answer without dollar signs, layout, emphasis and a full stop at its end."""
    text = re.sub(r"\s+", " ", text)
    if "&" in text and re.search(r"&(?:[lg][te]|amp|nbsp|minus|times|#\d+);", text):
        text = html.unescape(text)
    text = TAGS.sub(" ", in_ascii(text))
    text = re.sub(r"<sup>(.*?)</sup>", r"^{\1}", text)
    text = re.sub(r"<sub>(.*?)</sub>", r"_{\1}", text)
    # A doubled backslash is one that was escaped twice, but in a matrix it ends a row.
    text = (
        re.sub(r"\\\\(?:\[[^\[\]]*\])?", "\x01", text)
        if "\\begin" in text
        else re.sub(r"\\\\(?=[a-zA-Z%$])", r"\\", text)
    )
    text = text.replace("\\%", "%").replace("\\$", "\x00").replace("`", "")
    text = re.sub(r"(?<![\w*)}])\*{1,2}(?=\S)([^*]*?)(?<=\S)\*{1,2}(?![\w*({])", r"\1", text)
    text = text.replace("**", "^") if re.search(r"[\w)]\s*\*\*\s*[\w(-]", text) else text.replace("**", "")
    text = re.sub(r"\\(?:\(|\)|\[|\])", " ", text)
    # A dollar before a number is money, unless another closes mathematics that it opens.
    if text.count("$") % 2 == 0:
        text = re.sub(r"\${1,2}", "", text) if not re.fullmatch(r"\s*\$\d[^$]*\$\d[^$]*", text) else text
    text = text.replace("\x00", "$")
    text = re.sub(r"\s+", " ", _LAYOUT.sub("", text).replace("{}", ""))
    for pattern, plain in _HABITS:
        text = pattern.sub(plain, text)
    text = _SYSTEM.sub(r"\\begin{cases}\1\\end{cases}", text)
    if _LINES.search(text):
        text = _LINES.sub(" ", text).replace("&", "").replace("\x01", " , ")
    text = _COMMAND.sub(_renamed, re.sub(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|\\prime(?![a-z]))", "'", text))
    # \text{m/s^2} is \text{m/s}^2.
    text = _TEXT_WITH_POWERS.sub(
        lambda found: "\\text{" + re.sub(r"\^\s*(-?\d|\{[^{}]*\})", r"}^\1\\text{", found[1]) + "}", text
    ).replace("\\text{}", "")
    text = _MAGNITUDE.sub(lambda found: f"\\times 10^{MAGNITUDES[found[2]]}" + (found[1] or " "), text)
    text = re.sub(r"\\text\s*\{\s*([()\[\]{}.,:;\d\s/+=-]*)\s*\}", r" \1 ", text)
    text = _SPACED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _BRACED_COMMA.sub(lambda found: "." if "{" in found[0] else ",", text)
    text = re.sub(r"\\,|\\!", lambda found: " " if found[0] == "\\," else "", text)
    text = _SPACES.sub(" ", text)
    return bare(re.sub(r"\s+", " ", text.replace("\x01", r" \\ ")).strip())


def bare(text: str) -> str:
    """The text without punctuation, emphasis and quotes around it."""
    before = None
    while text != before:
        before = text
        text = text.strip(' \t\n*_"').strip()
        text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text
        text = re.sub(r"(?:(?<!\.)\.|[,;:?\s]+|(?<![\dn)}!])!+|(?<!!)!{3,})$", "", text)
        text = re.sub(r"^[=:]\s*|(?<!\\)\\$", "", text)
    return text


def words_of(text: str) -> str:
    """The text as words alone: no `\\text`, case, punctuation at the ends or repeated spaces."""
    before = None
    while text != before:
        before, text = text, _TEXT.sub(r" \1 ", text)
    text = re.sub(r"[\\{}$]", " ", text).replace("_", " ").casefold()
    text = re.sub(r"(?<=[\d\s])([ap])\.?\s?m\b\.?", r" \1m", text)
    text = re.sub(r"\s+", " ", text).strip(" .,;:!?\"'()[]")
    return re.sub(r"^(?:the|an|a) (?=\S\S)(?!and |or )", "", text)


def groups_joined(text: str) -> str:
    """The text with commas between groups of three digits dropped, where no bracket can make them a list."""
    if re.search(r"[(\[{]", text):
        return text
    return _COMMAS.sub(lambda found: re.sub(r"\D", "", found[0]), text)


_BOX = re.compile(r"(?:\\(?:boxed|fbox|framebox)|\x08oxed(?=\{)|(?<![A-Za-z\\])boxed(?=\{))\s*")
"""A backslash that was lost, or read as a backspace, is forgiven."""


def boxes(text: str) -> tuple[list[str], bool]:
    """What stands in each box that is closed, in order, and whether the text ends in an open one.

    Of a box in a box the inner one counts. `\\boxed 5` and `\\boxed5` are boxes without braces.
    """
    found, place = [], 0
    while match := _BOX.search(text, place):
        place = match.end()
        if text[place : place + 1] != "{":
            token = re.match(r"-?\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])|\\[a-zA-Z]+", text[place:])
            if token and match[0].strip() != "\\boxed{":
                found.append(token[0])
                place += token.end()
            continue
        end = _closing(text, place)
        if end is None:
            return found, True
        inner = text[place + 1 : end].strip()
        if inner:
            nested, _ = boxes(inner)
            found.append(nested[-1] if nested else inner)
        place = end + 1
    return found, False


def _closing(text: str, start: int) -> int | None:
    """The place of the brace that closes the one at `start`; `\\{` and `\\}` count in pairs only."""
    depth = 0
    place = start
    while place < len(text):
        sign = text[place]
        if sign == "\\":
            place += 2
            continue
        depth += (sign == "{") - (sign == "}")
        if depth == 0:
            return place
        place += 1
    return None
