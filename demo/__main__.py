"""``python -m demo``. Exit code 0 when every promise held, 1 with the reason otherwise, 130 after Ctrl-C."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from rich.console import Console

from demo.run import run_demo
from epd.contracts.errors import EpdError


def main() -> int:
    """Run the demo; Ctrl-C and SIGTERM stop the stack too.

    Not as KeyboardInterrupt: with it, though it was caught, the process was seen to end by SIGINT about once
    in twenty tries on a busy machine; why is not known.
    """
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)
    console = Console()
    try:
        run_demo(console)
    except EpdError as error:
        console.print(f"demo failed: {error}", style="bold red", markup=False)
        return 1
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
