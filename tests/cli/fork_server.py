"""`rlplan` for scripts that call it often: a server that has imported it forks for each call.

A script's calls stay processes of their own, with their own folder, streams and exit code, in the server's environment.
What they save is the second of imports that each would begin with. Run as `python fork_server.py SOCKET`, and call by
`CLIENT`.

"""

import json
import os
import socket
import socketserver
import sys

CLIENT = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [json.dumps([os.getcwd(), *sys.argv[2:]]).encode()], [0, 1, 2])
    code = server.recv(1)
sys.exit(code[0] if code else 70)
"""


class Call(socketserver.BaseRequestHandler):
    """Runs in a process of its own for each call."""

    def handle(self) -> None:
        from rlplan.cli.main import main

        call, streams, _, _ = socket.recv_fds(self.request, 1 << 16, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        folder, *arguments = json.loads(call)
        os.chdir(folder)
        sys.argv = ["rlplan", *arguments]
        code = 70
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            sys.stderr.flush()
            self.request.sendall(bytes([code]))


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks for each call."""


if __name__ == "__main__":
    import rlplan.cli.check
    import rlplan.cli.diff
    import rlplan.planner.check.checker  # noqa: F401 - imported once, for all calls

    with Server(sys.argv[1], Call) as server:
        print("ready", flush=True)
        server.serve_forever()
