"""``python -m bench.handoff.web FOLDER``: serves a folder on loopback until its standard input ends.

A process of its own, so that its CPU time is not the bench's; and one that ends with the bench, however that
ends. Its first line of output is its port.
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
        """Nothing is told."""


def main() -> None:
    """Serve until nobody holds the other end of standard input."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # a transfer may be under way, and nobody wants it any more


if __name__ == "__main__":
    main()
