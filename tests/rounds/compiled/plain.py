"""The compiled functions as plain Python: the same text, read without numba, so that no test waits for a compiler."""

import importlib
import sys
from types import SimpleNamespace

import numba
import numpy as np

PACKAGE = "rlplan.rounds.compiled"


def load(*modules):
    """These modules of rounds/compiled, whose functions are not compiled; who has imported them keeps the others."""
    package, disabled = importlib.import_module("rlplan.rounds"), numba.config.DISABLE_JIT
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(PACKAGE)}
    numba.config.DISABLE_JIT = True
    try:
        return SimpleNamespace(**{name: importlib.import_module(f"{PACKAGE}.{name}") for name in modules})
    finally:
        numba.config.DISABLE_JIT = disabled
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
        sys.modules.update(kept)
        if PACKAGE in kept:
            package.compiled = kept[PACKAGE]


def objects(records):
    """A structured array as an array of objects with its fields as attributes, as numba has them."""
    fields = records.dtype.names
    found = np.empty(records.shape, object)
    for index, values in zip(np.ndindex(records.shape), records.ravel().tolist(), strict=True):
        found[index] = SimpleNamespace(**dict(zip(fields, values, strict=True)))
    return found


def on_objects(function, world, *arguments):
    """What a function returns of a named tuple of arrays, whose records it may change."""
    tables = {name: value for name, value in world._asdict().items() if value.dtype.names}
    held = {name: objects(value) for name, value in tables.items()}
    result = function(world._replace(**held), *arguments)
    for name, table in tables.items():
        for field in table.dtype.names:
            table[field].flat = [getattr(each, field) for each in held[name].flat]
    return result
