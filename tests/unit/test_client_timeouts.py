"""How long the client lets a request take."""

from __future__ import annotations

import httpx

from epd.client import calls


def test_a_request_that_waits_may_take_so_much_longer() -> None:
    usual, call = httpx.Timeout(60.0, connect=5.0), calls.get_job("j")
    waiting = calls.request_options(call, 0.5, usual)["timeout"]
    assert (waiting.connect, waiting.read, waiting.write) == (5.0, 60.5, 60.0)
    assert calls.request_options(call, 0.0, usual)["timeout"] == usual
    assert calls.request_options(call, 9.0, httpx.Timeout(None))["timeout"].read is None
