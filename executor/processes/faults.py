"""Classes of error: what an error of an engine, a trainer rank or a reward worker means for a run.

| class | what happened | what is done |
|---|---|---|
| `ACTOR` | a process died, hung, lost its device or one it worked with | it is replaced (`supervision`) |
| `INFRASTRUCTURE` | a full disk or object store, on which all processes depend | the call is tried again |
| `FATAL` | anything else: plan, data or this program are at fault | the run ends with the reason |

Errors of this package name their class themselves (`error_class`); those of Ray, torch, vLLM and the system are
classified here. After an error of CUDA every later call of the same process fails, so the process is of no use even if
it answers. Memory that ran out may be a matter of fragments, which a new process does not have; where it runs out again
in the same step, the run ends.
"""

from __future__ import annotations

import enum
import errno
import re
from collections import Counter
from collections.abc import Hashable
from typing import ClassVar

from ray import exceptions as of_ray

from ...plans.yaml.errors import RunFailed


class ErrorClass(enum.Enum):
    """The class of an error, by who is to blame; see the module's table."""

    ACTOR = "actor"
    INFRASTRUCTURE = "infrastructure"
    FATAL = "fatal"


class ActorFailed(RunFailed):
    """A process of the run is gone or hangs. It ends the run only if the process is not replaced."""

    error_class: ClassVar[ErrorClass] = ErrorClass.ACTOR

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(process, reason)  # both arguments, so that the error can be pickled
        self.process, self.reason = process, reason

    def __str__(self) -> str:
        return f"{self.process}: {self.reason}"


class MemoryRanOut(RunFailed):
    """A process ran out of memory twice in the same step; the loop adds what the plan says of that memory."""


class InfrastructureFailed(RunFailed):
    """Something that all processes depend on failed, such as a full disk; the run ends only if it stays so."""

    error_class: ClassVar[ErrorClass] = ErrorClass.INFRASTRUCTURE


# A disk, a quota or a limit of file sizes is reached, a device fails, a network file system lost its server, file
# handles are used up.
_PASSING_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EFBIG}
_PASSING = re.compile(
    r"No space left on device|StorageFull|Disk quota exceeded|File too large|(?:os error |code: )(?:27|28|122)\b"
)

# A collective that lost a rank: gloo raises plain RuntimeErrors, NCCL and the store classes of their own. A rank that
# starts beside one that dies finds nobody at the meeting point.
_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Connection refused|Timed out waiting|Socket Timeout|"
    r"(?:Connect|Read) timeout|caused pair closure|connectFullMesh failed|NCCL communicator |"
    r"collective operation timeout|RPC call to \w+ timed out|"
    r"remote process exited|Dist(?:Backend|Network|Store)Error"
)
# What CUDA (HIP) and its libraries say, as torch, Triton and vLLM's dying core pass it on, often as text alone.
_DEVICE = re.compile(
    r"(?:CUDA|HIP|CUDART|cuDNN|NCCL) (?:driver )?[Ee]rror|cudaError[A-Z]|"
    r"CUDA_ERROR_|cuda runtime error|illegal memory access|"
    r"CU(?:BLAS|BLASLT|DNN|SOLVER|SPARSE|FFT)_STATUS_|"
    r"nccl(?:Internal|UnhandledCuda|System)Error|Triton Error \[|EngineDeadError|EngineCore encountered an issue"
)
_OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory|CUDA [Ee]rror: out of memory|Cannot allocate memory|"
    r"CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|"
    r"Triton Error \[\w+\]: out of memory|DefaultCPUAllocator: (?:can't|not enough)|"
    r"torch\.OutOfMemoryError|\bMemoryError\b"
)
_BY_NAME = {
    "DistBackendError", "DistNetworkError", "DistStoreError", "AcceleratorError", "OutOfMemoryError", "EngineDeadError"
}  # fmt: skip
# The last error of a traceback that came as text.
_RAISED = re.compile(r"^(?:\([^)]*\) )?(?:[\w.]+\.)?(\w+(?:Error|Exception))\b", re.MULTILINE)

_ACTOR_ERRORS = (
    of_ray.RayActorError,
    of_ray.WorkerCrashedError,
    of_ray.NodeDiedError,
    of_ray.OutOfMemoryError,  # Ray's own, which means that its memory monitor killed the process
    of_ray.ObjectLostError,
    of_ray.RpcError,
    of_ray.AsyncioActorExit,
    TimeoutError,
    ConnectionError,
)
_PASSING_ERRORS = (of_ray.ObjectStoreFullError, of_ray.OutOfDiskError)
_OF_THE_PROGRAM = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
_NAMES_OF_THE_PROGRAM = {"KeyError", "IndexError", *(each.__name__ for each in _OF_THE_PROGRAM)}


SAME_DEATHS = 8
"""So many deaths of a process at the same step, or with the same weights, are no accident, whatever they are of."""


class Recurrences:
    """Counts deaths by their cause and by where they happened, a step or a version of weights."""

    def __init__(self) -> None:
        self._deaths = Counter[tuple[str, Hashable]]()

    def again(self, cause: str, where: Hashable) -> str | None:
        """Count a death; how often it happened by now, in words that follow it, where it would happen again: the second
        time for a `cause` that is named, the `SAME_DEATHS`th for any other (""). Else None."""
        self._deaths[cause, where] += 1
        times = self._deaths[cause, where]
        if times < (2 if cause else SAME_DEATHS):
            return None
        return "for the second time" if times == 2 else f"for the {times}th time"


def classify(error: BaseException) -> ErrorClass:
    """The class of an error."""
    named = getattr(error, "error_class", None)
    if isinstance(named, ErrorClass):
        return named
    if isinstance(error, RunFailed):
        return ErrorClass.FATAL
    if isinstance(error, of_ray.RayTaskError):
        cause = error.cause
        return classify(cause) if isinstance(cause, BaseException) else _by_text(str(error))
    if isinstance(error, of_ray.RayActorError) and error.actor_init_failed:
        return _by_text(str(error))  # the constructor raised, and Ray keeps only the text
    if isinstance(error, _PASSING_ERRORS) or (isinstance(error, OSError) and error.errno in _PASSING_ERRNO):
        return ErrorClass.INFRASTRUCTURE
    if isinstance(error, (*_ACTOR_ERRORS, MemoryError)) or _BY_NAME & {base.__name__ for base in type(error).__mro__}:
        return ErrorClass.ACTOR
    return ErrorClass.FATAL if isinstance(error, _OF_THE_PROGRAM) else _by_text(str(error))


def _by_text(text: str) -> ErrorClass:
    if _PASSING.search(text):
        return ErrorClass.INFRASTRUCTURE
    if _LOST_PEER.search(text):
        return ErrorClass.ACTOR
    raised = _RAISED.findall(text)
    of_the_program = bool(raised) and raised[-1] in _NAMES_OF_THE_PROGRAM
    return ErrorClass.ACTOR if device_error(text) and not of_the_program else ErrorClass.FATAL


def out_of_memory(text: str) -> bool:
    """Whether an error says that a process found no memory, of its device or host; not that a system killed it."""
    return _OUT_OF_MEMORY.search(text) is not None


def device_error(text: str) -> bool:
    """Whether a text has the words of a device that failed, or had no memory left."""
    return _DEVICE.search(text) is not None or out_of_memory(text)


def own_device_error(text: str) -> bool:
    """Whether an error tells of the device of the process itself: not of memory, nor of a peer, as NCCL's do unless
    they pass on an error of CUDA."""
    of_peers = "nccl" in text.lower() and not re.search("unhandled ?cuda", text, re.IGNORECASE)
    return device_error(text) and not out_of_memory(text) and not of_peers


def _line(log: str, match: re.Match[str]) -> str:
    end = log.find("\n", match.end())
    return log[log.rfind("\n", 0, match.start()) + 1 : None if end < 0 else end]


def fatal_text(text: str) -> bool:
    """Whether an error of which only this text is known is neither a death nor a passing fault."""
    return _by_text(text) is ErrorClass.FATAL


def device_words(log: str) -> str:
    """The last words of a log on a device that failed or had no memory left; "" if there are none."""
    found = [match for words in (_DEVICE, _OUT_OF_MEMORY) for match in words.finditer(log)]
    # Engine… tells of it without a cause; and what a line tells that names no error was a warning.
    told = [match.start() for match in found if not match[0].startswith("Engine") and "rror" in _line(log, match)]
    return log[max(told) :].partition("\n")[0].strip()[:300] if told else ""


def reason(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, ActorFailed):
        return error.reason
    if isinstance(error, of_ray.RayTaskError) and isinstance(error.cause, BaseException):
        return reason(error.cause) if isinstance(error.cause, RunFailed) else _named(error.cause)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Ray writes what happened last.
    return (lines[-1] if lines else type(error).__name__)[:500]


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def failure(error: BaseException, process: str) -> RunFailed:
    """`error` as this package's error of the same class; `process` names the process that it came from."""
    if isinstance(error, RunFailed) and not isinstance(error, of_ray.RayTaskError):
        return error
    fault = classify(error)
    if fault is ErrorClass.ACTOR:
        return ActorFailed(process, reason(error))
    return (InfrastructureFailed if fault is ErrorClass.INFRASTRUCTURE else RunFailed)(f"{process}: {reason(error)}")
