"""A reward worker: it has responses scored in a process of its own (`scoring_child`), started anew when gone or worn.

A Ray actor in a run, a plain object in `local_scoring`. Whatever a response can make a reward function do happens in
the other process, so it cannot end, hang or bloat the worker, and the worker can say which response ended the process.
Imports no Ray (the pool wraps the class) and nothing heavy: a worker is restarted while a round waits for it.

What always holds:
- a batch is answered from its first row on without a gap; rows without an answer were not begun;
- a row's answer bears the numbers of its batch and row; after any other answer the process is replaced;
- `score` waits for no row longer than its deadline and `GRACE_S`, whatever the function does: what then still runs is
  killed with all that it started, and its response is blamed;
- `score` answers within `budget_s` plus one alarm plus what Python needs: by that the pool tells slow from hung;
- a process that died, ran out of memory or was killed scores nothing more: the last `ScoringResult` says `renew`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from .functions import ScorerConfig
from .sandbox.kernel import hide_memory, killed_by, show_memory
from .scoring import Outcome, ScoringResult
from .scoring_child import LENGTH

GRACE_S = 1.0
"""Beyond the deadline, for Python to run the alarm's handler on a busy machine; what never runs it is killed then."""
START_S = 600.0
"""Longest start; the pool, which waits for it, gives up long before."""
SEND_S = 5.0
"""A process that waits for requests takes one in microseconds; one that takes none for so long is not well."""
LOOK_S = 0.5
ANSWER_BYTES = 1 << 24
"""Far beyond the longest answer. Garbage may announce a longer one, and a start would wait START_S for its end."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STARVED_CPU_SHARE = 0.03
"""A process that is ready to run and had less than this share of a CPU was not let run; one that computes gets more."""

INHERITED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|PWD|TERM|LANG|LANGUAGE|LC_.+|TZ|TMP|TEMP|TMPDIR|PYTHON[A-Z]*|VIRTUAL_ENV|CONDA_PREFIX|"
    "LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.+|OMP_.+|KMP_.+|MKL_.+|OPENBLAS_.+|NUMEXPR_.+|NUMBA_.+|RAYON_NUM_THREADS|CUDA_.+|"
    "(HIP|ROCR|NVIDIA)_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|NVIDIA_TF32_OVERRIDE|XDG_.+_(HOME|DIR)|CC|CXX|"
    "HF_HOME|HF_ENDPOINT|HF_(HUB|DATASETS|MODULES)_(CACHE|OFFLINE)|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_(CACHE|OFFLINE)|"
    "TORCH_HOME|TRITON_CACHE_DIR|TOKENIZERS_PARALLELISM|NLTK_DATA|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|NO_PROXY"
)
SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CRED", re.IGNORECASE)
"""Variables of the environment that a program in Python may need to run, and its libraries to find their files. All
others stay with the host: tokens and keys have names of any kind. One that SECRET finds stays there in any case."""


def inherited(environment: Mapping[str, str], named: Collection[str] = ()) -> dict[str, str]:
    """The environment of a process that scores: what it needs to run of that of its host, and what the job has `named`
    (reward.environment). One thread for each library: the cores belong to the engine that decodes meanwhile."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in named
        or (INHERITED.fullmatch(name) and (name == "TOKENIZERS_PARALLELISM" or not SECRET.search(name)))
    }
    return kept | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


Row = tuple[str, str, Any, float]
"""Prompt, response, answer, deadline in seconds."""


class WorkerFacts(NamedTuple):
    """Facts that a worker reports when it has started."""

    problem: str | None
    """What the user must mend; None if nothing."""
    failure: str | None
    """What failed on its machine; None if nothing."""
    alarm_s: float = 0.0
    """Seconds after which the scoring of one sample is ended."""
    pid: int = 0
    notes: tuple[str, ...] = ()
    """What its machine lacks of what should hold a response."""


class RewardWorker:
    """Has rows scored, one after the other, in a process with the reward function imported, and its successors."""

    def __init__(self, config: ScorerConfig, explains: bool = False) -> None:
        self._config, self._explains = config, explains
        self._margin_s = 0.0
        self._notes: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._answers = -1
        self._read = b""
        self._batch = 0

    @property
    def pid(self) -> int | None:
        """Process id of the process that scores; None while there is none."""
        return None if self._process is None else self._process.pid

    def ready(self) -> WorkerFacts:
        """Start the process unless it is up."""
        if self._process is not None and self._process.poll() is None:
            return self._up()
        self.kill()  # it ended between two calls, if there was one
        hide_memory()  # what scores has the same user, and this process the environment that it must not see
        theirs, self._requests = os.pipe()
        self._answers, back = os.pipe()
        arguments = json.dumps([theirs, back, asdict(self._config), self._explains])
        # The search path as it is here: Ray sets this process's by other means than its environment.
        boot = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            f"from {__package__}.scoring_child import main; main(*json.loads(sys.argv[2]))"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", boot, json.dumps(sys.path), arguments],
            stdin=subprocess.DEVNULL,
            stdout=2 if self._explains else None,  # what a function prints is no part of the command's result
            pass_fds=(theirs, back),
            env=inherited(os.environ, self._config.environment),
            # A group that can be killed whole, and no session: Linux gives each session a share of the CPUs of its own
            # (autogroup), and lets one that mostly sleeps wait for seconds beside an engine that decodes.
            process_group=0,
        )
        os.close(theirs)
        os.close(back)
        os.set_blocking(self._requests, False)
        answer = self._next(time.monotonic() + START_S)
        if isinstance(answer, dict) and answer["problem"] is None and answer["failure"] is None:
            self._margin_s, self._notes = answer["margin_s"], tuple(answer["notes"])
            if answer["hidden"]:  # a response could reach this process as well as that one
                hide_memory()
            return self._up()
        code = self.kill()
        if isinstance(answer, dict):
            return WorkerFacts(answer["problem"], answer["failure"])
        return WorkerFacts(None, f"the process that scores did not start: {_ended(code)}")

    def _up(self) -> WorkerFacts:
        alarm_s = self._config.deadline_s + self._margin_s + GRACE_S
        return WorkerFacts(None, None, alarm_s, os.getpid(), self._notes)

    def score(self, rows: list[Row], budget_s: float) -> list[ScoringResult]:
        """Score rows in order until `budget_s` is spent or the process is lost; at least one `ScoringResult`. It never
        raises for what a reward function does."""
        if self._process is not None and self._answers_wait():
            self.kill()  # no batch is under way: a stray answer, or the pipe is closed
        facts = self.ready()
        if fault := facts.problem or facts.failure:
            return [ScoringResult("infra_failed", 0.0, 0.0, fault, renew=True)]
        results: list[ScoringResult] = []
        self._batch += 1
        began, used_s = time.monotonic(), self._usage()[1]
        if not self._send((self._batch, budget_s, rows)):  # no response was scored, so none is to blame
            code = self.kill()
            detail = f"the process that scores took no request: {_ended(code)}"
            return [ScoringResult("infra_failed", 0.0, 0.0, detail, renew=True)]
        while True:
            # After the last row only the end of the batch is to come, and that at once.
            deadline_s = rows[len(results)][3] + self._margin_s if len(results) < len(rows) else 0.0
            answer = self._next(began + deadline_s + GRACE_S)
            now = time.monotonic()
            if isinstance(answer, list) and answer[:2] == [self._batch, len(results)] and len(results) < len(rows):
                scored = ScoringResult(*answer[2:])
                if scored.outcome == "policy_memory":
                    limit = f"; it may take {self._config.memory_bytes} bytes (reward.memory_bytes)"
                    scored = scored._replace(detail=scored.detail + limit)
                results.append(scored)
                began, used_s = now, self._usage()[1]
            elif isinstance(answer, dict) and answer.get("batch") == self._batch and results:
                if answer["worn"]:
                    self.kill()
                    results[-1] = results[-1]._replace(renew=True)
                return results
            else:
                lost = self._lost(deadline_s, now - began, used_s, stray=answer is not None)
                if len(results) < len(rows):
                    return [*results, lost]
                return [*results[:-1], results[-1]._replace(renew=True)]

    def _usage(self) -> tuple[str, float]:
        """State letter of the process, as the kernel gives it, and its CPU seconds so far; ("", 0) if it is gone."""
        assert self._process is not None
        try:
            # Plain calls: this is read once a row, and `Path` took a third of the time that a row takes here.
            file = os.open(f"/proc/{self._process.pid}/stat", os.O_RDONLY)
            try:
                fields = os.read(file, 4096).rpartition(b")")[2].split()
            finally:
                os.close(file)
        except OSError:
            return "", 0.0
        return fields[0].decode(), (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def _lost(self, deadline_s: float, seconds: float, used_s: float, stray: bool) -> ScoringResult:
        """The result of a row that got no answer, or a `stray` one; ends the process.

        `used_s`: CPU seconds that the process had used when the row began.
        """
        assert self._process is not None
        ended = self._process.poll() is not None
        state, used_now_s = self._usage()
        stopped = not ended and state == "T"
        starved = not ended and state == "R" and used_now_s - used_s < STARVED_CPU_SHARE * seconds
        code = self.kill()
        outcome: Outcome = "policy_timeout"
        detail = f"no reward within {deadline_s:g} s, and no end either: killed"
        if stray:
            outcome, detail = "policy_crash", "what the function started answered in place of the process that scores"
        elif stopped:
            outcome, detail = "infra_failed", "the process that scores was stopped by a signal"
        elif starved:
            outcome, detail = "infra_failed", f"the process that scores was not let run for {seconds:.3g} s"
        elif ended and code == -signal.SIGXCPU:
            detail = "used up its CPU seconds"
        elif ended:
            outcome, detail = "policy_crash", f"the process that scores died: {_ended(code)}"
        elif seconds < deadline_s:
            outcome, detail = "policy_crash", "the process that scores closed the pipe for its answers"
        return ScoringResult(outcome, 0.0, seconds, detail, renew=True)

    def kill(self) -> int:
        """End the process and all that it started; returns its exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        # Asked first: a process that ended by itself is not to be called killed.
        process.poll()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            code = process.wait()  # reaped, and nothing left behind
        else:
            code = process.wait()
        os.close(self._requests)
        os.close(self._answers)
        if self._explains:  # this process is no worker, but a command or a driver
            show_memory()
        self._read = b""
        return code

    # ---- the pipes ----

    def _send(self, request: Any) -> bool:
        """Hand over a request; False if the process is gone, or stands still."""
        data = pickle.dumps(request)
        unsent = memoryview(LENGTH.pack(len(data)) + data)
        try:
            while unsent:
                if not select.select([], [self._requests], [], SEND_S)[1]:
                    return False
                unsent = unsent[os.write(self._requests, unsent) :]
        except BrokenPipeError:
            return False
        return True

    def _answers_wait(self) -> bool:
        """Whether an answer is there that was not read, or the pipe is closed."""
        return bool(self._read) or bool(select.select([self._answers], [], [], 0.0)[0])

    def _next(self, until: float) -> Any:
        """The next answer; "" if it is no answer; None if the process ends, or nothing comes in time (`until`)."""
        assert self._process is not None
        while True:
            if len(self._read) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._read)[0]
                if end > ANSWER_BYTES:
                    return ""
                if len(self._read) >= end:
                    answer, self._read = self._read[LENGTH.size : end], self._read[end:]
                    try:
                        return json.loads(answer)
                    except ValueError:
                        return ""
            wait_s = min(until - time.monotonic(), LOOK_S)
            # An answer that is there is read, even after the deadline.
            if select.select([self._answers], [], [], max(0.0, wait_s))[0]:
                data = os.read(self._answers, 1 << 16)
                if not data:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(LOOK_S)  # its end is closed by its death, or else by its response
                    return None
                self._read += data
            elif wait_s <= 0 or self._process.poll() is not None:
                return None


def _ended(code: int) -> str:
    return killed_by(code) or f"exit code {code}"
