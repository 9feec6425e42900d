"""The demo's reward: is the answer the value that the prompt gives for the key that the response found?"""

from __future__ import annotations

import re
from typing import Any

_PAIR = re.compile(r"(?<!\S)(n\d+) (=[a-z])(?!\S)")
_VALUE = re.compile(r"=[a-z]")
_END = "<eos>"


def score(prompt: str, response: str, answer: Any = None) -> float:
    """1.0 if the response ends with a key of the prompt, `yes` and the key's value, and has no other value; else 0.0.

    Args:
        prompt: text of the prompt, `keys n17 =c n83 =f ?`.
        response: text of the response, `n40 no n83 yes =f`; a final `<eos>` is ignored: tokenizers may drop it.
        answer: not looked at: the prompt itself holds the truth. The data set's `answer` repeats it for readers.

    A response that was cut at the cap ends in a try and has no value, hence 0. Never raises for any text.
    """
    del answer
    words = response.split()
    if words and words[-1] == _END:
        words.pop()
    if len(words) < 3 or words[-2] != "yes" or any(_VALUE.fullmatch(word) for word in words[:-1]):
        return 0.0
    return 1.0 if (words[-3], words[-1]) in _PAIR.findall(" ".join(prompt.split())) else 0.0
