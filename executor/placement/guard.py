"""A guard process that ends an actor and all that it started when the actor or its parent is gone.

A SIGKILLed actor can end nobody any more, and its engine core would hold cores and memory for ever; a stopped actor
does not notice that Ray and the driver are gone. So the actor makes itself the leader of a process group, into which
all that it starts is born, and a shell beside them kills the group, itself included, when
- the end of a pipe comes that only the actor holds: the kernel closes it when the actor is gone, also in mid-start;
- the actor's parent, the Ray daemon of its node, is gone, which it is soon after the driver; or
- a signal stopped the actor, and nobody has let it go on for STOPPED_S: then those who wait for it hear of its death.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

STOPPED_S = 60
"""Seconds for which an actor may be stopped (SIGSTOP) before its guard ends it."""

# $0: the parent, $1: the actor, $2: STOPPED_S. The third line of Linux' status names the state: T if a signal stopped
# it, t if a debugger did.
_WAIT_AND_KILL = """
(
  stopped=0
  while kill -0 $0 && [ $stopped -lt $2 ]; do
    sleep 1
    state=
    { read -r _; read -r _; read -r _ state _; } < /proc/$1/status
    if [ "$state" = T ]; then stopped=$((stopped + 1)); else stopped=0; fi
  done
  kill -KILL 0
) 2>/dev/null &
read -r _
kill -KILL 0
"""

_guards: list[subprocess.Popen[bytes]] = []  # a guard whose pipe is closed would strike


def guard_group(stopped_s: int = STOPPED_S) -> None:
    """Start the guard: nothing that this process starts outlives it, and it does not outlive its parent, nor stays
    stopped for longer than `stopped_s` seconds."""
    if _guards:
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    numbers = map(str, (os.getppid(), os.getpid(), stopped_s))
    _guards.append(subprocess.Popen(["/bin/sh", "-c", _WAIT_AND_KILL, *numbers], stdin=subprocess.PIPE))


def guarded(actor_class: type[Any]) -> type[Any]:
    """The class of an actor that starts its guard before anything else, also when Ray starts it again."""

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        guard_group()
        actor_class.__init__(self, *arguments, **named)

    # Ray names the process by the class.
    return type(actor_class.__name__, (actor_class,), {"__init__": __init__, "__module__": actor_class.__module__})


def guard_pid() -> int | None:
    """Process id of this process's guard; None if it has none."""
    return _guards[0].pid if _guards else None
