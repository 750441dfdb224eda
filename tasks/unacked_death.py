"""Decides from a session's descriptor alone whether its process is certainly dead."""

from __future__ import annotations

import json

from tasks.unacked_process import ProcessMark

#: Sessions of this very process that are not settled yet, filled by every ``Obituary``.
_own_sessions: set[str] = set()


class Obituary:
    """Judges other sessions; knows those of this process, which may hold several for a while."""

    def __init__(self, own_session: str) -> None:
        _own_sessions.add(own_session)
        self._session = own_session
        self._own_mark = ProcessMark.own()

    def is_certain(self, session: str, descriptor: bytes) -> bool:
        """True when the process behind ``descriptor`` is gone, or was replaced by this one through exec."""
        if session in _own_sessions:
            return False
        mark = parse_mark(descriptor)
        return mark is not None and (mark.same_process(self._own_mark) or mark.is_gone())

    def close(self) -> None:
        """Forget the session once it is settled."""
        _own_sessions.discard(self._session)


def parse_mark(descriptor: bytes) -> ProcessMark | None:
    """The mark within a descriptor; None when it was written by something else than this code."""
    try:
        fields = json.loads(descriptor)
        return ProcessMark(
            namespace=str(fields["namespace"]), pid=int(fields["pid"]), started=float(fields["started"])
        )
    except (ValueError, KeyError, TypeError):
        return None
