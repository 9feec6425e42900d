"""The option --tokenizer: tokens of texts, for dumps that have no counts."""

from __future__ import annotations

from collections.abc import Callable

import click

from ...plans.yaml.errors import InputError

tokenizer_option = click.option(
    "--tokenizer",
    metavar="MODEL",
    help="Counts the tokens of dumps of texts (verl's, TRL's): a folder, or a name that transformers knows.",
)


def tokens_by(name: str | None) -> Callable[[str], int] | None:
    """Tokens of a text by a tokenizer; None for no name. Raises InputError if it cannot be loaded."""
    if name is None:
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"--tokenizer {name}: {str(error).splitlines()[0]}") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
