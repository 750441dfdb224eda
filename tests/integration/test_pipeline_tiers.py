"""Real fetch workers move embedding files between the tiers, and another goes on when the mover is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from epd.store import keys
from epd.store.open import Store, open_store
from tests.contract.cache.tier_kit import KEPT, MIB, Tiers
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line
from tests.integration.transport_kit import wait_until

#: The lease of a killed mover has to end first.
NEXT_MOVER = 40


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    l1, l2 = str(MIB), str(2 * MIB)
    tiers = {"EPD_L2_DIR": str(tmp_path / "l2"), "EPD_EMBEDDING_BYTES": l1, "EPD_L2_BYTES": l2}
    with opened(Line, tmp_path) as made:
        made.environment |= tiers
        for number in (1, 2):
            made.start("-Q", "fetch", "-c", "1", "-n", f"fetch{number}@%h")
        wait_until(lambda: len(made.store.heartbeats.alive()) == 2, within=60, what="workers up")
        yield made


@pytest.fixture
def tiers(line: Line) -> Iterator[Tiers]:
    sizes = {"l2_dir": line.folder / "l2", "embedding_bytes": MIB, "l2_bytes": 2 * MIB}
    store: Store = open_store(line.settings.model_copy(update=sizes))
    yield Tiers(store, line.folder / "embeddings", line.folder / "l2")
    store.close()


def _fits(tiers: Tiers) -> bool:
    stats = tiers.store.embeddings.stats()
    return stats.entries <= KEPT and stats.l2 is not None and stats.l2.entries > 0


def test_files_move_and_go_on_moving_after_a_kill(line: Line, tiers: Tiers) -> None:
    made = tiers.put(1, 2, 3, 4)
    wait_until(lambda: _fits(tiers), within=20, what="demotion")
    first = tiers.file(tiers.l1, made[0])
    wait_until(lambda: not first.exists(), within=5, what="room in L1")
    assert tiers.file(tiers.l2, made[0]).exists()
    assert tiers.hits(made) == [True] * 4
    wait_until(first.exists, within=20, what="promotion")
    wait_until(lambda: _fits(tiers), within=20, what="room for it")
    _kill_the_mover(line)
    made += tiers.put(5)
    wait_until(lambda: _fits(tiers), within=NEXT_MOVER, what="demotion by the next mover")
    assert tiers.hits(made) == [True] * 5
    assert all(tiers.is_right(key) for key in made)


def _kill_the_mover(line: Line) -> None:
    """A worker is frozen; where the lease is not renewed any more, it was the mover, and is killed."""
    for process in line.processes:
        os.killpg(process.pid, signal.SIGSTOP)
        if not _is_renewed(line):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            return
        os.killpg(process.pid, signal.SIGCONT)
    raise AssertionError("no worker moves")


def _is_renewed(line: Line) -> bool:
    """Whether the mover's lease becomes longer within a second and a half: six rounds of an idle mover."""
    with redis.Redis.from_url(line.settings.store_url) as client:
        left = client.pttl(keys.MOVER)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            before, left = left, client.pttl(keys.MOVER)
            if left > before:
                return True
            time.sleep(0.02)
    return False
