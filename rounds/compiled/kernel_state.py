"""The state of the kernel: records by engine, by sample, by draw, and one for the round. Numba passes them as pointers.

Samples are numbered in the order of issue; the samples of a draw are neighbours. Draws are numbered likewise; `row` is
a draw's row in the tables of lengths and rewards that the caller gives. Seconds, tokens; -1 is none.
"""

from __future__ import annotations

import numpy as np

# Kinds of round, as the caller names them.
RACE, EXACT_SHORT, EXACT_LONG = 0, 1, 2

# What became of a draw; OPEN draws have no fate yet. Every draw of a finished round has one.
OPEN, TRAINED, FILTERED, DEFERRED, RETURNED, DISCARDED = 0, 1, 2, 3, 4, 5

WAITING, RUNNING, GONE = 0, 1, 2

# How the kernel ended: RAN_OUT if it wanted more rows than it was given, STUCK if the round waits for nothing.
DONE, RAN_OUT, STUCK = 0, 1, 2

ENGINE = np.dtype(
    [
        ("now", "f8"),
        ("prefill", "f8"),
        ("held_up", "f8"),
        ("load", "f8"),
        ("upcoming", "f8"),
        ("step", "i8"),
        ("kv", "i8"),
        ("shared", "i8"),
        ("filled", "i8"),
        ("cached", "i8"),
        ("decoded", "i8"),
        ("preemptions", "i8"),
        ("admissions", "i8"),
        ("running", "i4"),  # how many
        ("youngest", "i4"),  # the sample admitted last
        ("first", "i4"),  # head and tail of the queue
        ("last", "i4"),
        ("touched", "b1"),
    ],
    align=True,
)

SAMPLE = np.dtype(
    [
        ("due", "i4"),  # the engine's step at which it has something to tell
        ("admitted", "i4"),
        ("order", "i4"),  # of admission, on its engine
        ("tokens", "i4"),
        ("base", "i4"),
        ("cutoff_tokens", "i4"),
        ("prompt", "i4"),  # tokens of its prompt,
        ("shared", "i4"),  # those of them that its samples share,
        ("held", "i4"),  # what its engine holds of the prompt; -1 where none asks
        ("prompt_number", "i4"),  # the prompt's number in the round
        ("draw", "i4"),
        ("place", "i4"),  # its number in its draw
        ("engine", "i4"),
        ("spot", "i4"),  # in the engine's heap
        ("older", "i4"),  # neighbours in order of admission
        ("younger", "i4"),
        ("behind", "i4"),  # next in the engine's queue, or among the held
        ("state", "i1"),
        ("live", "b1"),
        ("finished", "b1"),
        ("rewarded", "b1"),
    ],
    align=True,
)

DRAW = np.dtype(
    [
        ("row", "i4"),
        ("prompt", "i4"),  # number of its prompt in the round
        ("first", "i4"),  # its first sample
        ("later", "i4"),  # the prompt's next draw
        ("finished", "i4"),
        ("rewarded", "i4"),
        ("ready_s", "f8"),  # when it is certain to be trained and has all its rewards; negative: not yet
        ("fate", "i1"),
        ("past", "b1"),  # past the cutoff
    ],
    align=True,
)

PROMPT = np.dtype(
    [
        ("tokens", "i4"),
        ("shared", "i4"),  # tokens that its samples share on an engine
        ("holders", "i4"),  # the latest of the engines that were given samples of it
        ("lead", "f8"),  # by which engines that hold it may be ahead (rounds/balance); 0: they are not preferred
        ("offset", "i4"),  # row of its first draw, and how many rows it has
        ("given", "i4"),
        ("copies", "i4"),  # draws at once
        ("until_long", "b1"),
        ("counts", "b1"),
        ("drawn", "i4"),
        ("first", "i4"),  # its draws, oldest first, up to the first that is known to be long
        ("last", "i4"),
        ("chosen", "i4"),
        ("exhausted", "b1"),
    ],
    align=True,
)

# Of a prompt whose samples share tokens or engines, and an engine that was given one of them: reference_engine.Prefix;
# `other` is the next of the prompt's engines.
PREFIX = np.dtype(
    [("users", "i4"), ("computed", "i4"), ("intact_until", "i8"), ("engine", "i4"), ("other", "i4")], align=True
)

# What a sample draws: its length without the limit, its reward, and a worker's seconds for that.
DRAWN = np.dtype([("natural", "i4"), ("reward", "f8"), ("reward_s", "f8")], align=True)

# Seconds of a decode step by the number of running sequences: without their KV, and more per KV token.
STEP = np.dtype([("base_s", "f8"), ("kv_s", "f8")], align=True)

REWARD = np.dtype([("due_s", "f8"), ("count", "i8"), ("sample", "i4")], align=True)

# One record: the machine's state, counters, and the costs that do not depend on the batch.
ROUND = np.dtype(
    [
        ("kind", "i4"),
        ("target", "i4"),
        ("group", "i4"),  # samples that are trained of a draw
        ("issue", "i4"),  # samples that are issued of a draw
        ("limit", "i4"),  # tokens at which an issue is cut
        ("cap", "i4"),
        ("cutoff_tokens", "i4"),
        ("dynamic", "b1"),
        ("refills", "b1"),
        ("watched", "b1"),
        ("over", "f8"),
        ("accepted", "i4"),
        ("open", "i4"),
        ("prompts", "i4"),  # issued at first
        ("next", "i4"),
        ("pending", "i4"),
        ("draws", "i4"),
        ("samples", "i4"),
        ("prefixes", "i4"),
        ("touched", "i4"),  # engines that must admit waiting samples
        ("rows", "i4"),  # rows that are given
        ("more", "b1"),  # the feed has more than was given
        ("status", "i1"),
        ("done", "b1"),
        ("decode_end", "f8"),
        ("expected", "f8"),
        ("finish_s", "f8"),
        ("prefill_s", "f8"),
        ("prefill_s_per_token", "f8"),
        ("prefill_s_per_token_squared", "f8"),
        ("capacity", "i8"),
        ("most", "i8"),
        ("rewards_due", "i4"),
        ("rewards_count", "i8"),
        ("delay_s", "f8"),
        ("changes", "b1"),  # engines may change before the round's end
        ("before", "i4"),  # engines of the round; those of a tail come after them
        ("first_on", "i4"),  # the engines that decode on after the change: from this one
        ("last_on", "i4"),  # up to, but without this one
        ("takes_s", "f8"),
        ("after_finish_s", "f8"),
        ("after_prefill_s", "f8"),
        ("after_prefill_s_per_token", "f8"),
        ("after_prefill_s_per_token_squared", "f8"),
        ("after_capacity", "i8"),
        ("freed", "b1"),
        ("decision_due", "b1"),  # a decision is due
        ("finished", "i4"),
        ("milestone", "i4"),
        ("stride", "i4"),
        ("growth", "i4"),
        ("refused", "?"),
        ("moved", "i4"),
        ("freed_s", "f8"),
        ("after_rollout", "b1"),
        ("held", "i4"),  # samples whose rewards wait for the rollout's end, in order
        ("held_last", "i4"),
    ],
    align=True,
)
