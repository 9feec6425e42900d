"""Parse the JSON rows of data files and traces; every fault is one ValueError with a message for the user."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str) -> Any:
    """The JSON value of `text`. Raises ValueError with a message for the user: no JSON, nested too deeply, an
    integer that Python does not read, or half of a surrogate pair, which files and tokenizers refuse."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("JSON is nested too deeply; flatten the row") from None
    except ValueError:
        raise ValueError("JSON holds a number of more than 4,300 digits; write it as text") from None
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("JSON holds half of a surrogate pair; write the character itself") from None
    return value
