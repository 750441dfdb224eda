"""A chunk that was in a dying worker is taken apart, so that a deadly item dies alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tasks_kit import Bench, png

from epd.contracts.media import Modality
from tasks.fetch import fetch
from tests.store_kit import Stores


@pytest.fixture
def bench(tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path, stores)
    monkeypatch.setattr("tasks.process.process_context", lambda: bench.context)
    monkeypatch.setattr("tasks.process.download_executor", lambda: ThreadPoolExecutor(1))
    return bench


@contextmanager
def delivered(times_before: int) -> Iterator[None]:
    fetch.push_request(epd_deliveries=times_before)
    try:
        yield
    finally:
        fetch.pop_request()


def test_a_chunk_from_a_dead_worker_goes_on_as_single_items(bench: Bench) -> None:
    image = Modality.IMAGE
    message = bench.job((image, bench.upload(png())), (image, bench.upload(png())))
    with delivered(1):
        fetch.run(message.to_document())
    assert [len(each.items) for each in bench.outbox.fetches] == [1, 1]
    assert {each.items[0].index for each in bench.outbox.fetches} == {0, 1}
    assert bench.outbox.decodes == []


@pytest.mark.parametrize(("items", "times_before"), [(2, 0), (1, 2)])
def test_a_first_delivery_and_a_single_item_are_fetched(bench: Bench, items: int, times_before: int) -> None:
    message = bench.job(*[(Modality.IMAGE, bench.upload(png()))] * items)
    with delivered(times_before):
        fetch.run(message.to_document())
    assert bench.outbox.fetches == []
    assert bench.outbox.decodes
