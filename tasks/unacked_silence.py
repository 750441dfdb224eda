"""Tells dead sessions from slow ones by watching their heartbeat counters. Pure: no clock and no socket."""

from __future__ import annotations

from collections.abc import Mapping


class SilenceWatch:
    """Adds up how long each session's counter stood still *while we were looking*.

    Neither wall clocks nor key expiry are trusted: after an outage of the server, or a pause of this very
    process, every counter looks old, and nobody is dead. So a gap between two looks counts at most as
    twice the period, and a look that failed starts a new gap.
    """

    def __init__(self, *, limit_s: float, period_s: float) -> None:
        self._limit_s = limit_s
        self._longest_step_s = 2 * period_s
        self._last_look: float | None = None
        self._beats: dict[str, bytes | None] = {}
        self._silence: dict[str, float] = {}

    def look(self, now: float, beats: Mapping[str, bytes | None]) -> list[str]:
        """Take one look at all registered sessions; returns those silent for ``limit_s``.

        ``now`` is a monotonic time in seconds; a beat is None where its key has expired.
        """
        step = 0.0 if self._last_look is None else min(now - self._last_look, self._longest_step_s)
        self._last_look = now
        self._silence = {name: self._silence_of(name, beat, step) for name, beat in beats.items()}
        self._beats = dict(beats)
        return [name for name, silence in self._silence.items() if silence >= self._limit_s]

    def look_failed(self) -> None:
        """The server did not answer: what was silent meanwhile proves nothing."""
        self._last_look = None

    def _silence_of(self, name: str, beat: bytes | None, step: float) -> float:
        known = name in self._silence
        if not known or (beat is not None and beat != self._beats[name]):
            return 0.0
        return self._silence[name] + step
