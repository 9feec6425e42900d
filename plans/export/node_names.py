"""A file with the names of nodes by pool, for exports that address nodes: `h20: [gpu-node-1, gpu-node-2]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..phrases.numbers import count
from ..yaml.errors import InputError, joined
from ..yaml.input_files import read_text
from ..yaml.yaml_doc import Document, Loc, parse

_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NODE_NAME = re.compile(rf"{_PART}(\.{_PART})*")
"""A name that Kubernetes gives a node: lower-case letters, digits, `-` and `.` (a DNS subdomain)."""

MOST_CHARACTERS = 253


def load_node_names(path: Path, nodes_needed: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Read the names of each pool's nodes. A pool that the file leaves out has none.

    Args:
        nodes_needed: by pool, nodes that the plan takes.

    Raises InputError with a line for each fault: a pool that the plan does not use, too few names, a name that no node
    can have, a name that stands there twice.
    """
    document = parse(read_text(path), str(path))
    if not isinstance(document.value, dict):
        raise InputError("must be a mapping of pools to lists of node names, as in h20: [gpu-node-1]", str(path), 1)
    faults: list[tuple[Loc, str]] = []
    seen: dict[str, str] = {}
    for pool, names in document.value.items():
        if pool not in nodes_needed:
            pools = ", ".join(sorted(nodes_needed))
            faults.append(((pool,), f"the plan uses no pool '{pool}'; its pools are {pools}"))
        elif not isinstance(names, list):
            faults.append(((pool,), f"{pool}: must be a list of node names, as in [gpu-node-1, gpu-node-2]"))
        else:
            faults += _name_faults(pool, names, seen)
            if len(names) < nodes_needed[pool]:
                needed = count(nodes_needed[pool], "node")
                faults.append(((pool,), f"{pool}: has {count(len(names), 'name')}, and the plan takes {needed} of it"))
    if faults:
        raise joined([_error(document, path, location, message) for location, message in faults])
    return {pool: tuple(names) for pool, names in document.value.items()}


def _name_faults(pool: str, names: list[Any], seen: dict[str, str]) -> list[tuple[Loc, str]]:
    """Faults of one pool's names; `seen`: names so far, with their pools."""
    faults: list[tuple[Loc, str]] = []
    for index, name in enumerate(names):
        if not isinstance(name, str) or len(name) > MOST_CHARACTERS or not NODE_NAME.fullmatch(name):
            message = f"{pool}.{index}: '{name}' cannot be the name of a Kubernetes node; kubectl get nodes lists them"
            faults.append(((pool, index), message))
        elif name in seen:
            faults.append(((pool, index), f"{pool}.{index}: '{name}' is already in pool '{seen[name]}'; name it once"))
        else:
            seen[name] = pool
    return faults


def _error(document: Document, path: Path, location: Loc, message: str) -> InputError:
    return InputError(message, str(path), document.line_of(location))
