"""A GPU worker that is killed in the middle of a batch loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from test_stack_at_once import some_jpeg

from epd.client import Client
from epd.contracts.job import FINAL_STATES, State
from epd.contracts.responses import JobAnswer
from epd.stack.stack import Stack

ITEMS = 48


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 60) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not within {timeout} s: {what}"
        time.sleep(0.02)


def unacked(client: Client) -> int:
    return next(queue.unacked for queue in client.status().queues if queue.name == "encode")


@pytest.mark.timeout(300)
def test_sigkill_in_the_middle_of_a_batch(stack: Stack, client: Client) -> None:
    """Items are distinct, so none can be answered from the cache."""
    items = [{"type": "image", "data": some_jpeg(10_000 + number)} for number in range(ITEMS)]
    job = client.submit(items, model="slow")
    wait_until(lambda: done(client.job(job.job_id)) > 0 and unacked(client) > 0, "a batch under way")
    before = stack.pid("gpu")
    assert done(client.job(job.job_id)) < ITEMS, "the encoder is too fast for this test"
    stack.kill("gpu")

    wait_until(lambda: stack.pid("gpu") not in {None, before}, "restarted")
    final = client.wait(job.job_id, 180)
    assert final.state is State.DONE, [item.error for item in final.items if item.error]
    keys = {item.embedding.key for item in final.items if item.embedding}
    assert len(keys) == ITEMS
    for key in keys:
        assert client.embedding(key).shape == (257, 256)
    wait_until(lambda: unacked(client) == 0, "all acked")


def done(job: JobAnswer) -> int:
    return sum(item.state in FINAL_STATES for item in job.items)
