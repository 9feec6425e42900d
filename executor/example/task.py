"""Keyhunt: guess symbols until one is a key of the prompt, then answer with that key's value.

A prompt lists keys with their values and ends with a question mark; a response tries one symbol after another:

    prompt     keys n17 =c n83 =f n5 =a ?
    response   n40 no n12 no n83 yes =f <eos>

A policy that draws its tries uniformly needs a geometric number of them, with success probability
`len(keys) / SYMBOLS`: the length of a response depends on the prompt (how many keys) and on chance, and its
distribution over prompts, `DIFFICULTY`, has the shape of published ones: most prompts easy, one in ten hard, a heavy
tail that reaches the cap. The reward (`executor.rewards.keyhunt`) looks at the answer alone, so it pays the policy
nothing for being short or long. `yes` stands between try and value so that learning which value to give does not touch
the choice between `yes` and `no`: with `n83 =f`, 40 steps of RL made the policy say `no` to half of the keys it tried,
which costs it no reward and made its responses ever longer.

Every word is one token. Prompts need no special token: what a tokenizer would add or leave out cannot change them.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

SYMBOLS = 384
"""Number of symbols that can be keys or tries."""

VALUES = 8
"""Number of values. Few, so that a policy that answers at random is right now and then and can learn from it."""

START, ASK, MISS, HIT = "keys", "?", "no", "yes"
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"

SYMBOL_WORDS = tuple(f"n{i}" for i in range(SYMBOLS))
VALUE_WORDS = tuple(f"={chr(ord('a') + i)}" for i in range(VALUES))
WORDS = (PAD, EOS, UNKNOWN, START, ASK, MISS, HIT, *VALUE_WORDS, *SYMBOL_WORDS)
"""The vocabulary; a word's index is its token id."""

TOKEN = {word: i for i, word in enumerate(WORDS)}
FIRST_VALUE = TOKEN[VALUE_WORDS[0]]
FIRST_SYMBOL = TOKEN[SYMBOL_WORDS[0]]

DIFFICULTY = ((1, 0.10), (56, 0.30), (80, 0.60))
"""(number of keys, share of prompts). A response to a prompt with k keys has 2 SYMBOLS / k + 2 tokens on average. The
shares are chosen for a cap of 2048 tokens and have the shape of published lengths of mixed tasks (`rlplan lengths show
gym-8k`, four times as long: median 33, p95 1457, 1% at the cap of 8192, most of the variance between prompts): the
median is near 10, p95 near 500, and 0.6% of the samples reach the cap. In four of five steps of 16 x 3 samples a prompt
is hard, and in three of four the longest has at least 30 times the tokens of the median. A step has few samples since
on a CPU, unlike on a GPU, a decode step of some 25 sequences takes twice as long as one of one."""


@dataclass(frozen=True)
class Hunt:
    """One prompt. `pairs` holds (symbol index, value index) in the order of the prompt; symbols are distinct."""

    pairs: tuple[tuple[int, int], ...]

    @property
    def prompt(self) -> str:
        """The text: `keys n17 =c n83 =f ?`."""
        words = [f"{SYMBOL_WORDS[symbol]} {VALUE_WORDS[value]}" for symbol, value in self.pairs]
        return " ".join((START, *words, ASK))

    @property
    def answer(self) -> dict[str, str]:
        """The right value of each key: {"n17": "=c", ...}."""
        return {SYMBOL_WORDS[symbol]: VALUE_WORDS[value] for symbol, value in self.pairs}


def draw_hunt(rng: random.Random, keys: int) -> Hunt:
    """A prompt with `keys` distinct keys (1 to SYMBOLS) and independent values."""
    assert 1 <= keys <= SYMBOLS, keys
    return Hunt(tuple((symbol, rng.randrange(VALUES)) for symbol in rng.sample(range(SYMBOLS), keys)))


def draw_held_out(seed: int, prompts: int, trained: Collection[Hunt]) -> list[Hunt]:
    """`prompts` different prompts that are not among those that are `trained`, all with the most keys of DIFFICULTY, so
    that their responses are short: an evaluation waits for its longest one, and what is learnt is the same for all."""
    rng, known = random.Random(f"{seed}:held out"), set(trained)
    hunts: dict[Hunt, None] = {}
    while len(hunts) < prompts:
        hunt = draw_hunt(rng, DIFFICULTY[-1][0])
        if hunt not in known:
            hunts[hunt] = None
    return list(hunts)


def draw_data(seed: int, prompts: int) -> list[Hunt]:
    """`prompts` different prompts whose difficulties have the shares of DIFFICULTY exactly (up to rounding), shuffled.

    Exact shares, so that two data sets differ in their prompts and not in how hard they are.
    """
    rng = random.Random(seed)
    hunts: dict[Hunt, None] = {}
    cumulative = 0.0
    for keys, share in DIFFICULTY:
        cumulative += share
        while len(hunts) < round(prompts * cumulative):
            hunts[draw_hunt(rng, keys)] = None
    drawn = list(hunts)
    rng.shuffle(drawn)
    return drawn
