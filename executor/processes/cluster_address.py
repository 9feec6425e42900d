"""RAY_ADDRESS: which Ray cluster a command uses."""

from __future__ import annotations

import os
import re

from ...plans.yaml.errors import InputError

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


def cluster_address() -> str | None:
    """The address in RAY_ADDRESS: HOST:PORT (`[::1]:6379` for IPv6), or `auto`, the cluster that this machine is of.

    None if Ray is to be started on this machine: the variable is not set, is empty or says `local`. Raises InputError
    if it says anything else.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        return None
    match = _HOST_AND_PORT.fullmatch(address)
    if address != "auto" and (match is None or not 0 < int(match[2]) < 2**16):
        raise InputError(
            f"RAY_ADDRESS: is {address!r}; write HOST:PORT of the head of a Ray cluster, as 10.0.0.1:6379 or "
            "[::1]:6379, or auto for the cluster that this machine is of, or unset it to run on this machine alone"
        )
    return address
