"""``python -m bench.handoff.web FOLDER``: serves a folder on loopback until its standard input ends.

It is a separate process, so its CPU time is not counted as the benchmark's, and it always ends with the
benchmark. Its first line of output is its port.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until the other end of standard input is closed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # a transfer may be pending that is no longer wanted


if __name__ == "__main__":
    main()
