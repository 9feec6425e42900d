"""What sees to it that vLLM's processes do not outlive the actor that started them.

A SIGKILLed actor can end nobody any more, and its engine core would hold cores and memory for ever. So the actor makes
itself the leader of a process group, into which all that vLLM starts is born, and a shell beside them waits for the end
of a pipe that only the actor holds: the kernel closes it when the actor is gone, however it went, also in mid-start.
Then the shell kills the group, itself included; a stopped process is killed like any other.
"""

from __future__ import annotations

import os
import subprocess

_WAIT_AND_KILL = "read -r _; kill -KILL 0"


def guard_children() -> subprocess.Popen[bytes]:
    """Let nothing that this process starts outlive it. The result must be kept as long as the process lives."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    return subprocess.Popen(["/bin/sh", "-c", _WAIT_AND_KILL], stdin=subprocess.PIPE)
