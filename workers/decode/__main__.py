"""``python -m workers.decode FD``: a process that only decodes, started by ``workers.decode.children``."""

from __future__ import annotations

import logging
import signal
import sys
from multiprocessing.connection import Connection

from workers.decode.serving import serve


def main() -> None:
    """Serve on the inherited socket. Signals for the worker do not end a decode; the parent does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s decode-child %(name)s %(message)s")
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        sys.exit(0)


if __name__ == "__main__":
    main()
