"""Run by every process of a chaos stack that has this folder on its path: marked media kill their process.

The scenario leaves an empty file ``<stage>-<sha256>`` in the folder that CHAOS_DEADLY_MARKS names. A decode
child that opens such media, and a GPU worker whose batch begins with it, end by SIGKILL as if for want of
memory. Nothing of this is in the product: it is patched in from here.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

_MARKS = Path(os.environ.get("CHAOS_DEADLY_MARKS", "/nonexistent"))


def _die_if_marked(stage: str, digest: str) -> None:
    if (_MARKS / f"{stage}-{digest}").exists():
        os.kill(os.getpid(), signal.SIGKILL)


def _patch_decode() -> None:
    import workers.decode.decode

    real = workers.decode.decode.decode

    def decode(path: Path, **others: Any) -> Any:
        _die_if_marked("decode", hashlib.sha256(path.read_bytes()).hexdigest())
        return real(path, **others)

    workers.decode.decode.decode = decode


def _patch_encode() -> None:
    from gpu_worker.service.dispatcher import Dispatcher

    real = Dispatcher.on_begun

    def on_begun(self: Dispatcher, slots: Any) -> None:
        for slot in slots:
            ticket = self.ledger.get(slot.id)
            if ticket is not None:
                _die_if_marked("encode", ticket.message.digest)
        real(self, slots)

    Dispatcher.on_begun = on_begun  # type: ignore[method-assign]


_command = " ".join(sys.orig_argv)
if "workers.decode.child" in _command:
    _patch_decode()
elif "gpu_worker" in _command:
    _patch_encode()
