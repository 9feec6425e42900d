"""Classes of error: what an error of an engine, a trainer rank or a reward worker means for a run.

| class | what happened | what is done |
|---|---|---|
| `ACTOR` | a process of the run died, hung, or lost a process it worked with | it is replaced (`supervision`) |
| `INFRASTRUCTURE` | a full disk or object store, on which all processes depend | the call is tried again |
| `FATAL` | anything else: plan, data or this program are at fault | the run ends with the reason |

Errors of this package name their class themselves (`error_class`); those of Ray, torch and the system are classified
here.
"""

from __future__ import annotations

import enum
import errno
import re
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
    r"remote process exited|Dist(?:Backend|Network|Store)Error"
)
_COLLECTIVE_ERRORS = {"DistBackendError", "DistNetworkError", "DistStoreError"}

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
    if isinstance(error, _ACTOR_ERRORS) or _COLLECTIVE_ERRORS & {base.__name__ for base in type(error).__mro__}:
        return ErrorClass.ACTOR
    return ErrorClass.FATAL if isinstance(error, _OF_THE_PROGRAM) else _by_text(str(error))


def _by_text(text: str) -> ErrorClass:
    if _PASSING.search(text):
        return ErrorClass.INFRASTRUCTURE
    return ErrorClass.ACTOR if _LOST_PEER.search(text) else ErrorClass.FATAL


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
