"""Downloads that never end are ended at their deadlines, by one thread for all of them."""

from __future__ import annotations

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from epd.contracts.errors import SourceTimeout
from tests.hostile.bad_server import BadServer
from workers.fetch.download import download
from workers.limits import FetchLimits


def seconds_until_ended(server: BadServer, target: str, total: float) -> float:
    limits = FetchLimits(
        max_bytes=1 << 20, allow_hosts=(server.authority,), read_timeout=1, total_timeout=total
    )
    began = time.monotonic()
    with pytest.raises(SourceTimeout):
        download(server.url(target), into=io.BytesIO(), limits=limits)
    return time.monotonic() - began


@pytest.mark.parametrize("target", ["/drip", "/drip-headers", "/silent"])
def test_the_total_deadline_ends_what_never_ends(bad_server: BadServer, target: str) -> None:
    assert seconds_until_ended(bad_server, target, 1.5) < 2.5


def test_one_watchdog_ends_many_downloads_each_in_its_time(bad_server: BadServer) -> None:
    totals = [2.0, 1.5, 1.0, 0.5] * 2
    with ThreadPoolExecutor(len(totals)) as pool:
        took = list(pool.map(lambda total: seconds_until_ended(bad_server, "/drip", total), totals))
    assert all(total <= one < total + 0.6 for total, one in zip(totals, took, strict=True)), took
    watchdogs = [thread for thread in threading.enumerate() if thread.name == "epd-download-deadlines"]
    assert len(watchdogs) == 1
