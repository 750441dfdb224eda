r"""Every key that our transport adds to the broker's database, and the scripts that use them.

Queue lists keep kombu's own names.

A *lane* is one list of kombu's: a queue at one priority step (``fetch``, ``fetch\x06\x169``).
A *session* is one stretch of consuming by one worker process on one connection.

==========================  =======  ==========  =============================================================
key                         type     TTL         owner, content
==========================  =======  ==========  =============================================================
``epd:unacked:<session>``   hash     none        the session, after its death any worker's reclaimer;
                                                 receipt -> ``deliveries \n lane \n raw message``
``epd:beat:<session>``      string   3 s         the session's heartbeat thread; a counter
``epd:sessions``            hash     none        one field a session, removed with its last unacked message
``epd:receipts``            string   none        one counter for the whole broker
``epd:again:<lane>``        list     none        its queue; messages given back, ``deliveries \n raw``
``epd:solo:<lane>``         list     none        its queue; messages on their last try, run alone
``epd:bell:<lane>``         list     10 min      its queue; one token at most, while the lane has messages
``epd:poison``              list     7 days      the reclaimers; what killed its workers, at most 10 000
``epd:poison:lock``         string   30 s        the reclaimer that calls the poison hook
==========================  =======  ==========  =============================================================
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

#: Message header: how many workers died while they held the message. Not a key, but also spelled only here.
DELIVERIES: Final = "epd_deliveries"

#: kombu's mark between a queue's name and a priority step in the name of a lane.
LANE_SEPARATOR: Final = "\x06\x16"

SESSIONS: Final = "epd:sessions"
RECEIPTS: Final = "epd:receipts"
POISON: Final = "epd:poison"
POISON_LOCK: Final = "epd:poison:lock"

AGAIN_PREFIX: Final = "epd:again:"
SOLO_PREFIX: Final = "epd:solo:"
BELL_PREFIX: Final = "epd:bell:"

BELL_TTL_S: Final = 600
BEAT_TTL_S: Final = 3
POISON_TTL_S: Final = 7 * 24 * 3600
POISON_CAP: Final = 10_000
POISON_LOCK_TTL_S: Final = 30


def lane(queue: str, step: int) -> str:
    """The lane of a queue's priority step. As in kombu, the most urgent one has the queue's own name."""
    return f"{queue}{LANE_SEPARATOR}{step}" if step else queue


def queue_of(lane: str) -> str:
    """The queue that a lane belongs to."""
    return lane.split(LANE_SEPARATOR, 1)[0]


def unacked(session: str) -> str:
    """Hash of the messages that a session holds."""
    return f"epd:unacked:{session}"


def beat(session: str) -> str:
    """Heartbeat counter of a session."""
    return f"epd:beat:{session}"


def again(lane: str) -> str:
    """Messages of a lane that were given back; served before the lane itself."""
    return AGAIN_PREFIX + lane


def solo(lane: str) -> str:
    """Messages of a lane that have to be alone in their worker; served before all else."""
    return SOLO_PREFIX + lane


def bell(lane: str) -> str:
    """The list on which idle workers wait."""
    return BELL_PREFIX + lane


def side_lists(lane: str) -> tuple[str, str]:
    """The other lists that hold messages of a lane; they are counted and purged with it."""
    return again(lane), solo(lane)


@cache
def script_text(name: str) -> str:
    """Source of ``tasks/transport/lua/<name>.lua``."""
    return files("tasks.transport").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def fanout_topic(db: int, exchange: str, routing_key: str) -> str:
    """The channel on which kombu publishes the messages of a fanout exchange."""
    return f"/{db}.{exchange}/{routing_key}"


def raise_for_first(results: list[Any]) -> None:
    """Raise the error of a pipeline's first command. A failed ring after it costs half a second at most."""
    if isinstance(results[0], Exception):
        raise results[0]


def ring(pipe: Any, lane: str) -> None:
    """Queue the commands that leave one token at the bell of ``lane``, on a redis-py pipeline."""
    for command in ring_commands(lane):
        pipe.execute_command(*command)


def ring_commands(lane: str) -> list[tuple[str | int, ...]]:
    """The commands that leave one token at the bell of ``lane``.

    The trim keeps tokens of a lane that nobody consumes from piling up.
    """
    key = bell(lane)
    return [("LPUSH", key, 1), ("LTRIM", key, 0, 0), ("EXPIRE", key, BELL_TTL_S)]
