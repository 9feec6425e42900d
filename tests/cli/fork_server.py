"""`rlplan` for scripts that call it often: a server that has imported it forks for each call.

A script's calls stay processes of their own, with their own folder, environment, streams and exit code; what they save
is the second of imports that each would begin with. Run as `python fork_server.py SOCKET`; `CLIENT` is what calls it.
"""

from __future__ import annotations

import json
import os
import socket
import sys

CLIENT = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    call = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
    data = json.dumps(call).encode()
    socket.send_fds(server, [len(data).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(data)
    code = server.recv(1)
sys.exit(code[0] if code else 70)
"""


def serve(path: str) -> None:
    """Answer calls until the process is ended."""
    import rlplan.cli.check
    import rlplan.cli.diff
    import rlplan.cli.fmt
    import rlplan.planner.check.checker  # noqa: F401 - imported once, for all calls

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                head, streams, _, _ = socket.recv_fds(connection, 4, 3)
                data = b""
                while len(data) < int.from_bytes(head, "big"):
                    data += connection.recv(1 << 16)
                child = os.fork()
                if not child:
                    _call(json.loads(data), streams)
                for stream in streams:
                    os.close(stream)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                connection.sendall(bytes([code if code >= 0 else 128 - code]))


def _call(call: dict, streams: list[int]) -> None:
    """Be the process that was called for; never returns."""
    from rlplan.cli.main import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    sys.argv = ["rlplan", *call["arguments"]]
    code = 70
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
