"""What is done to processes and connections, and how long it takes until the work goes on."""

from __future__ import annotations

import signal
import time

import psutil

from epd.contracts.errors import EpdError
from tests.chaos.held import held_by
from tests.chaos.notices import Part
from tests.chaos.play import Play
from tests.chaos.server import Server
from tests.chaos.world import wait_until

_BUSY_LIMIT = 20.0
_BACK_LIMIT = 60.0
_RECOVERY_LIMIT = 60.0
#: What was published just before a kill has been heard after this many seconds.
_LAST_WORDS = 0.05


def kill_at_work(play: Play, name: str, *, within: float, kind: str) -> bool:
    """SIGKILL a part while it holds messages, at a random moment of the ``within`` seconds after its first.

    It stays down until one of those messages has ended elsewhere (``recoveries``), and is then started anew.
    Returns False where nothing was held at the moment of the kill.
    """
    stack, broker = play.world.stack, play.world.broker
    pid = stack.pid(name)
    assert pid is not None, f"{name} is down"
    wait_until(lambda: held_by(broker, pid), _BUSY_LIMIT)
    time.sleep(play.dice.uniform(0, within))
    stack.hold(name)
    killed = time.monotonic()
    stack.kill(name)
    wait_until(lambda: stack.pid(name) is None, 5)
    time.sleep(_LAST_WORDS)
    held = {part for part in held_by(broker, pid) if part not in play.watch.ended_at}
    if held:
        _measure(play, held, killed, name)
    stack.release(name)
    await_worker(play, name, kind)
    return bool(held)


def _measure(play: Play, held: set[Part], killed: float, name: str) -> None:
    ended = play.watch.ended_at
    back = wait_until(lambda: any(part in ended for part in held), _RECOVERY_LIMIT)
    play.require(back, f"nothing that {name} held has ended within {_RECOVERY_LIMIT:.0f} s")
    if back:
        play.recoveries.append(min(ended[part] for part in held if part in ended) - killed)


def await_worker(play: Play, name: str, kind: str) -> None:
    """Wait until a restarted worker says that it is ready."""
    pid_of = play.world.stack.pid

    def is_back() -> bool:
        try:
            workers = play.client.status().workers
        except EpdError:
            return False
        return any(one.kind == kind and one.ready and one.pid == pid_of(name) for one in workers)

    play.require(wait_until(is_back, _BACK_LIMIT), f"{name} was not ready again in {_BACK_LIMIT:.0f} s")


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


def freeze(play: Play, name: str, seconds: float) -> None:
    """SIGSTOP a part, and SIGCONT it after so many seconds."""
    play.world.stack.kill(name, signal.SIGSTOP)
    time.sleep(seconds)
    play.world.stack.kill(name, signal.SIGCONT)


def cut_connections(server: Server) -> int:
    """CLIENT KILL of every connection but our own; returns how many were cut."""
    cut = 0
    for kind in ("normal", "pubsub"):
        cut += int(server.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"))
    return cut
