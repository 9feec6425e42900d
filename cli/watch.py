"""`rlplan watch RUN...`: runs while they go on, as bars in the terminal and as a page on this machine."""

from __future__ import annotations

import errno
import json
import sys
import threading
import time
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from ..plans.phrases.numbers import count, duration
from ..plans.phrases.sentences import one_line
from ..plans.yaml.errors import InputError

HOST = "127.0.0.1"
FIRST_PORT, PORTS = 8571, 20
LOOK_S = 0.5
BEAT_S = 5.0
"""The page hears from the server at least so often; templates/live.js takes three times as long for a lost one."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@click.command("watch")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=None,
    help=f"Port of the page; default: {FIRST_PORT}, or the next one that is free.",
)
@click.option("--no-serve", is_flag=True, help="Only tell of the runs here, without a page.")
@click.option("--until-end", is_flag=True, help="End once all runs have ended or died; without it Ctrl-C ends.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each run whenever it has news.")
def watch_command(runs: tuple[Path, ...], port: int | None, no_serve: bool, until_end: bool, as_json: bool) -> int:
    """Show RUNS while they go on: their steps, the time that they have left, and the page of `rlplan report`.

    Each of RUNS is the --out of `rlplan execute`: the folder of a run, or of several. Runs that have ended are shown,
    too. Several runs are drawn beside each other. Only files are read, so any host that sees them will do, and nothing
    is taken from the run; the page can be reached from this machine alone (from another one by `ssh -L`).
    """
    if no_serve and port is not None:
        raise InputError("--port is of the page, and --no-serve leaves it out; give one of them")
    from ..traces.groups.groups_folder import group_folders
    from ..traces.watched_runs import WatchedRuns

    for run in runs:
        if groups := group_folders(run):
            first = run / next(iter(groups))
            raise InputError(f"holds groups of jobs; see rlplan status {run} --watch, or watch one: {first}", str(run))
    watched = WatchedRuns(runs)
    with ExitStack() as stack:
        server = None
        if not no_serve:
            server = stack.enter_context(PageServer(watched, port, " and ".join(each.resolve().name for each in runs)))
            click.echo(json.dumps({"url": server.url}) if as_json else f"page: {server.url}")
        tell = _json_lines(watched) if as_json else stack.enter_context(_Lines(watched))
        tell(list(watched.runs()))
        while not (until_end and watched.ended):
            time.sleep(LOOK_S)
            if news := watched.look():
                tell(news)
                if server is not None:
                    server.wake()
    return 0


def _json_lines(watched: Any) -> Any:
    def tell(names: list[str]) -> None:
        for name in names:
            click.echo(json.dumps(watched.standing(name)))
        sys.stdout.flush()

    return tell


class _Lines:
    """The terminal's view: bars that are drawn anew, or a line for each step where there is no terminal."""

    def __init__(self, watched: Any) -> None:
        from .screens.live import LiveView

        self._watched, self._told, self._evaluated = watched, dict[str, int](), dict[str, int]()
        self._states = dict[str, str]()
        self._view = LiveView({}, 0, now_s=time.time)

    def __enter__(self) -> _Lines:
        self._view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.__exit__()

    def __call__(self, names: list[str]) -> None:
        """Tell what is new of these runs; of a run that is new only its last step and last evaluation."""
        from ..traces.report_state import evaluation_text, evaluations

        runs = self._watched.runs()
        for name in names:
            run, standing = runs[name], self._watched.standing(name)
            steps, state, began_s = run.log.steps, standing["state"], run.written_s - (run.log.last_t_s or 0.0)
            self._view.run_is(
                one_line(name), run.plan, standing["of"] or 0, run.log.drains, steps,
                [began_s + at_s for at_s in run.log.ended_s], "" if state == "running" else state,
            )  # fmt: skip
            fresh = [step for step in steps if step.step > self._told.get(name, 0)]
            for step in fresh if name in self._told else fresh[-1:]:
                self._view.step_line(one_line(name), step)
            self._told[name] = steps[-1].step if steps else 0
            evaluated = evaluations(run.log.events)
            if evaluated and evaluated[-1]["step"] != self._evaluated.get(name):
                self._view.note(f"{one_line(name)}: {evaluation_text(evaluated[-1])}")
                self._evaluated[name] = evaluated[-1]["step"]
            if state not in ("running", self._states.get(name)):
                self._view.note(f"{one_line(name)}: {one_line(standing['state_text'])}")
            self._states[name] = state


class PageServer:
    """Serves the page of watched runs on the loopback interface, until the block ends.

    Raises InputError if the port, or each of those that are tried without one, is taken.
    """

    def __init__(self, watched: Any, port: int | None, title: str) -> None:
        self.watched, self.title = watched, title
        self.news = threading.Condition()
        self.closing, self.streams = False, 0
        self._content: tuple[int, bytes] | None = None
        self._rendering = threading.Lock()
        self._server = self._bound(port)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self.port = self._server.server_port
        self.url = f"http://{HOST}:{self.port}/"

    def _bound(self, port: int | None) -> ThreadingHTTPServer:
        handler = type("Handler", (_Handler,), {"page": self})
        for number in range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else (port,):
            try:
                return ThreadingHTTPServer((HOST, number), handler)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                why = "is in use" if error.errno == errno.EADDRINUSE else "is not yours to use"
        if port is None:
            raise InputError(f"ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are in use; name another one with --port")
        raise InputError(f"port {port} {why}; name another one, or leave --port out")

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing = True
        self.wake()
        with self.news:  # pages hear of the end before the server goes
            self.news.wait_for(lambda: not self.streams, 2 * LOOK_S)
        self._server.shutdown()
        self._server.server_close()

    def wake(self) -> None:
        """Tell the pages that there is something new."""
        with self.news:
            self.news.notify_all()

    def rendered(self, live: Any) -> bytes:
        """The page, or its content, as of now."""
        from ..plans.page.page_of_run import run_page

        with self._rendering:
            version = self.watched.version
            if live == "content" and self._content is not None and self._content[0] == version:
                return self._content[1]
            text = run_page(self.watched.report(), title=self.title, live=live).encode()
            if live == "content":
                self._content = version, text
            return text

    def state(self) -> dict[str, Any]:
        """What a page is told: the version of the content, whether all runs have ended, and a line for people."""
        standing = [self.watched.standing(name) for name in self.watched.runs()]
        ended = self.watched.ended
        going = [each for each in standing if each["state"] == "running"]
        parts = [
            f"{each['run']}: step {each['step']}"
            + (f" of {each['of']}" if each["of"] and each["of"] >= each["step"] else "")
            + (f", about {duration(each['left_s'])} left" if each["left_s"] else "")
            for each in going
        ]
        if len(parts) > 2:
            longest_s = max((each["left_s"] for each in going if each["left_s"]), default=None)
            parts = [f"{count(len(parts), 'run')} go on" + (f", about {duration(longest_s)} left" if longest_s else "")]
        text = "; ".join(parts) if parts else "has not begun to train" if not standing else "ended"
        return {"version": self.watched.version, "ended": ended, "closing": self.closing, "text": text}


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the few addresses of the page; whoever was led here under another host's name is sent away."""

    page: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    server_version, sys_version = "rlplan", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the view's."""

    def do_GET(self) -> None:
        """Answer a request."""
        # A name that another site lets point to this machine (DNS rebinding) is not ours. A port may be that of ssh -L.
        host = urlsplit("//" + self.headers.get("Host", "")).hostname if _plausible(self.headers.get("Host")) else None
        if host not in (HOST, "localhost"):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"ask for http://{HOST}\n".encode())
            return
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"no address\n")
            return
        try:
            match address.path:
                case "/":
                    self._send(HTTPStatus.OK, "text/html", self.page.rendered("page"))
                case "/content":
                    self._send(HTTPStatus.OK, "text/html", self.page.rendered("content"))
                case "/report.json":
                    self._report(parse_qs(address.query).get("run", []))
                case "/events":
                    self._events()
                case _:
                    self._send(HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the reader has gone

    def _report(self, names: list[str]) -> None:
        found = self.page.watched.report()
        if names and names[-1] not in found["runs"]:
            text = json.dumps({"error": "no such run", "runs": list(found["runs"])})
            self._send(HTTPStatus.NOT_FOUND, "application/json", text.encode())
            return
        self._send(HTTPStatus.OK, "application/json", json.dumps(found["runs"][names[-1]] if names else found).encode())

    def _events(self) -> None:
        """Tell of each new version, and something every BEAT_S, until the reader or the server goes."""
        self.close_connection = True
        self._head(HTTPStatus.OK, "text/event-stream")
        news = self.page.news
        with news:
            self.page.streams += 1
        try:
            while True:
                state = self.page.state()
                self.wfile.write(f"data: {json.dumps(state)}\n\n".encode())
                if state["closing"]:
                    return
                with news:
                    if self.page.watched.version == state["version"] and not self.page.closing:
                        news.wait(BEAT_S)
        finally:
            with news:
                self.page.streams -= 1
                news.notify_all()

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._head(status, kind, len(body))
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, size: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if size is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(size))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()


def _plausible(host: str | None) -> bool:
    """Whether a Host header is a name with a port and nothing else, which urlsplit reads."""
    return host is not None and all(char.isalnum() or char in ".:-" for char in host)
