"""What is done to processes and connections, and how long it takes until the work goes on."""

from __future__ import annotations

import logging
import time

import psutil

from epd.contracts.errors import EpdError
from tests.chaos.held import held_by
from tests.chaos.notices import Part
from tests.chaos.play import Play
from tests.chaos.server import Server
from tests.chaos.world import wait_until

logger = logging.getLogger(__name__)

_BUSY_LIMIT = 40.0
_END_LIMIT = 10.0
_BACK_LIMIT = 60.0
_RECOVERY_LIMIT = 60.0
#: What was published just before a kill has been heard after this many seconds.
_LAST_WORDS = 0.05


def kill_at_work(play: Play, name: str, *, within: float, kind: str, comes_back: bool = True) -> bool:
    """SIGKILL a part while it holds messages, a random time of up to ``within`` seconds after it has some.

    It stays down until one of those messages has ended elsewhere (``recoveries``), and is then started again;
    not so with ``comes_back`` False.
    Returns False where nothing was held at the moment of the kill.
    """
    stack = play.world.stack
    stack.hold(name)
    held = wait_for_work(play, name, within=within)
    killed = time.monotonic()
    pid = stack.pid(name)
    stack.kill(name)
    play.require(await_end(play, name, pid, _END_LIMIT), f"{name} did not die of SIGKILL")
    time.sleep(_LAST_WORDS)
    held = {part for part in held if part not in play.watch.ended_at}
    if held:
        measure_recovery(play, held, killed, name)
    logger.info("%s killed with %d messages in hand", name, len(held))
    if comes_back:
        stack.release(name)
        await_worker(play, name, kind)
    return bool(held)


def wait_for_work(play: Play, name: str, *, within: float) -> set[Part]:
    """Return at a random moment at which a part holds messages, with what they are for; at last with none."""
    pid = play.world.stack.pid(name)
    assert pid is not None, f"{name} is down"
    broker, end = play.world.broker, time.monotonic() + _BUSY_LIMIT
    while time.monotonic() < end:
        wait_until(lambda: held_by(broker, pid), max(0.0, end - time.monotonic()))
        time.sleep(play.dice.uniform(0, within))
        if held := held_by(broker, pid):
            return held
    return set()


def measure_recovery(play: Play, held: set[Part], killed: float, name: str) -> None:
    """Seconds from ``killed`` (monotonic) until the first of these parts has ended; another worker did it."""
    ended = play.watch.ended_at
    back = wait_until(lambda: any(part in ended for part in held), _RECOVERY_LIMIT)
    play.require(back, f"nothing that {name} held has ended within {_RECOVERY_LIMIT:.0f} s")
    if back:
        play.recoveries.append(min(ended[part] for part in held if part in ended) - killed)


def await_more_ends(play: Play, limit: float) -> bool:
    """Wait until a part ends that has not ended shortly after now; False after ``limit`` seconds."""
    time.sleep(_LAST_WORDS)
    before = len(play.watch.ended_at)
    return wait_until(lambda: len(play.watch.ended_at) > before, limit)


def await_end(play: Play, name: str, pid: int | None, limit: float) -> bool:
    """Wait until a part is no longer this process; False after ``limit`` seconds."""
    return wait_until(lambda: play.world.stack.pid(name) != pid, limit)


def await_worker(play: Play, name: str, kind: str) -> None:
    """Wait until a restarted worker says that it is ready."""
    pid_of = play.world.stack.pid

    def is_back() -> bool:
        try:
            workers = play.client.status().workers
        except EpdError:
            return False
        return any(one.kind == kind and one.ready and one.pid == pid_of(name) for one in workers)

    away = time.monotonic()
    play.require(wait_until(is_back, _BACK_LIMIT), f"{name} was not ready again in {_BACK_LIMIT:.0f} s")
    logger.info("%s was back after %.1f s", name, time.monotonic() - away)


def kill_child(play: Play, name: str) -> int | None:
    """SIGKILL a random child of a part's process; returns its pid, None where there is no child."""
    pid = play.world.stack.pid(name)
    try:
        children = psutil.Process(pid).children() if pid is not None else []
        child = play.dice.choice(children)
        child.kill()
    except (psutil.NoSuchProcess, IndexError):
        return None
    return int(child.pid)


def cut_connections(server: Server) -> int:
    """CLIENT KILL of every connection but our own; returns how many were cut."""
    cut = 0
    for kind in ("normal", "pubsub"):
        cut += int(server.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"))
    return cut
