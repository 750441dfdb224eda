"""One of two GPU workers dies and stays away; then both die at once and are started again."""

from __future__ import annotations

import time

from tests.chaos.checkpoints import SLOW_MODEL
from tests.chaos.faults import await_end, await_more_ends, await_worker, kill_at_work, wait_for_work
from tests.chaos.play import Play, Scenario

_ITEMS = 24
_LIMIT = 120.0


def one_lost(play: Play) -> None:
    """The other worker finishes all that was accepted."""
    play.submit(_ITEMS, SLOW_MODEL)
    kill_at_work(play, "gpu0", within=0.2, kind="encode", comes_back=False)
    play.submit(_ITEMS // 2, SLOW_MODEL)
    play.require(play.load.finish(_LIMIT), "one GPU worker alone did not finish")
    play.world.stack.release("gpu0")
    await_worker(play, "gpu0", "encode")


def all_lost(play: Play) -> None:
    """Nobody is left to encode: what was accepted waits for the supervisor's restart."""
    for _ in range(play.times(3, 1)):
        play.submit(_ITEMS, SLOW_MODEL)
        wait_for_work(play, "gpu0", within=0.2)
        killed = time.monotonic()
        pids = {name: play.world.stack.pid(name) for name in ("gpu0", "gpu1")}
        for name, pid in pids.items():
            play.world.stack.kill(name)
            await_end(play, name, pid, _LIMIT)
        play.require(await_more_ends(play, _LIMIT), "nothing ended after the restart of both GPU workers")
        play.facts.setdefault("restart_and_recovery_s", []).append(round(time.monotonic() - killed, 1))
        for name in pids:
            await_worker(play, name, "encode")


ONE = Scenario("one_of_two_gpu_lost", one_lost, in_short=False)
ALL = Scenario("both_gpu_killed_restarted", all_lost, in_short=False)
