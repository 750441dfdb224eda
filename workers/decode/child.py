"""A process that only decodes: ``python -m workers.decode.child FD PARENT``, started by ``DecodeChildren``.

It knows neither store nor broker, can open no socket, and ends with the worker that started it.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import platform
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from PIL import Image

from epd.contracts.errors import BlobMissing, EpdError
from epd.processes import die_with_parent
from workers.decode.decode import audio_track, decode
from workers.decode.exchange import (
    TO_CHILD,
    Channel,
    Decoded,
    DecodeRequest,
    Failure,
    Hello,
    HoldAnswer,
    HoldRequest,
    Request,
    ToWorker,
    Track,
    Unexpected,
    limits_from,
)
from workers.decode.image import Scratch

#: Most characters of a traceback that are sent.
_LONGEST_TRACEBACK = 16_000
#: Which process the kernel kills first when memory runs out: this one, not the worker. From -1000 to 1000.
_OOM_SCORE = "500"

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38
#: By machine: its AUDIT_ARCH, and the numbers of socket(2) and io_uring_setup(2), which could open one too.
_SOCKET_CALLS = {"x86_64": (0xC000003E, 41, 425), "aarch64": (0xC00000B7, 198, 425)}


def main(fd: int, parent: int) -> None:
    """Serve requests until the worker closes its end or dies."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the worker, which ends its children itself
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    if os.getppid() != parent:  # it died before the line above
        return
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    Image.init()  # its plug-ins are loaded on demand otherwise
    channel = Channel(socket.socket(fileno=fd))
    refuse_sockets()
    gc.collect()
    gc.freeze()
    server = _Server(channel)
    with suppress(EOFError, ConnectionError):
        channel.send(Hello())
        while True:
            server.serve()


class _Server:
    """Answers one request after another."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._scratch = Scratch()

    def serve(self) -> None:
        """Receive a request and answer it."""
        request = TO_CHILD.validate_json(self._channel.receive())
        assert not isinstance(request, HoldAnswer)
        self._channel.send(self._answer(request))

    def _answer(self, request: Request) -> ToWorker:
        try:
            return self._do(request)
        except EpdError as error:
            return Failure.of(error)
        except Exception:
            if not Path(request.path).exists():
                return Failure.of(BlobMissing("the bytes were removed while they were decoded"))
            return Unexpected(traceback=traceback.format_exc()[-_LONGEST_TRACEBACK:])

    def _do(self, request: Request) -> ToWorker:
        limits = limits_from(request.limits, self._hold)
        if not isinstance(request, DecodeRequest):
            return Track(track=audio_track(Path(request.path), limits=limits))
        raw = decode(
            Path(request.path),
            modality=request.modality,
            options=request.options,
            rules=request.rules,
            limits=limits,
            out=Path(request.out),
            scratch=self._scratch,
        )
        return Decoded(raw=raw)

    def _hold(self, nbytes: int) -> None:
        """``limits.hold`` of the worker; raises what it raises."""
        try:
            self._channel.send(HoldRequest(nbytes=nbytes))
            answer = TO_CHILD.validate_json(self._channel.receive())
        except (EOFError, ConnectionError):
            raise SystemExit from None  # the worker is gone
        assert isinstance(answer, HoldAnswer)
        if answer.refusal is not None:
            raise answer.refusal.to_error()


class _Program(ctypes.Structure):
    """``struct sock_fprog``, a filter of system calls."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def refuse_sockets() -> None:
    """Let the kernel refuse every new socket, also to ffmpeg, on the machines of ``_SOCKET_CALLS``."""
    if sys.platform != "linux" or platform.machine() not in _SOCKET_CALLS:
        return
    architecture, *calls = _SOCKET_CALLS[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    refuse_at = len(calls) + 5
    program = [
        (load, 0, 0, 4),  # the architecture of the call
        (equal, 0, refuse_at - 2, architecture),
        (load, 0, 0, 0),  # its number
        (at_least, refuse_at - 4, 0, 0x40000000),  # the x32 calls of x86_64
        *((equal, refuse_at - line - 1, 0, call) for line, call in enumerate(calls, 4)),
        (give, 0, 0, 0x7FFF0000),  # allow
        (give, 0, 0, 0x00050000 | errno.EACCES),
    ]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(program), code)), 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
