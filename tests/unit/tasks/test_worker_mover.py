"""The mover thread: files move while it runs, store errors do not end it, and it stops on request."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from epd.contracts.errors import StoreUnavailable
from epd.settings import Settings
from epd.store.values import Moved
from tasks.worker import background
from tasks.worker.background import MoverThread
from tests.contract.cache.tier_kit import Tiers, two_tiers
from tests.contract.store_values import wait_until
from tests.store_kit import Stores


@pytest.fixture
def tiers(tmp_path: Path, stores: Stores) -> Tiers:
    settings = Settings(blob_dir=tmp_path / "blobs")
    return two_tiers(lambda **changes: stores.open(settings.model_copy(update=changes)), tmp_path)


def test_files_move_while_the_mover_runs(tiers: Tiers) -> None:
    thread = MoverThread(tiers.store.embeddings)
    thread.start()
    keys = tiers.put(1, 2, 3, 4)
    below, above = tiers.file(tiers.l2, keys[0]), tiers.file(tiers.l1, keys[0])
    wait_until(lambda: below.exists() and not above.exists())
    assert tiers.hits(keys[:1]) == [True]
    wait_until(lambda: tiers.store.embeddings.stats().totals.promotions == 1)
    thread.stop()
    assert not thread.is_alive()


def test_errors_do_not_end_the_mover(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([StoreUnavailable("down"), ValueError("a bug"), Moved(more=True)])
    calls = []

    def move(_: float) -> Moved:
        calls.append(time.monotonic())
        answer = next(answers, Moved())
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(tiers.store.embeddings, "move", move)
    monkeypatch.setattr(background, "FAILURE_PERIOD", 0.01)
    thread = MoverThread(tiers.store.embeddings)
    thread.start()
    wait_until(lambda: len(calls) >= 5)
    thread.stop()
    assert calls[3] - calls[2] < background.MOVER_PERIOD <= calls[4] - calls[3]
