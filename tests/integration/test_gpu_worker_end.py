"""A GPU worker that ends in the middle of its work, gracefully or not: nothing is lost or done twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from epd.contracts.job import State
from epd.contracts.messages import EncodeMessage
from tests.integration.encode_kit import EncodeLine
from tests.integration.line_kit import opened
from tests.integration.transport_kit import wait_until

#: An encoder this large takes some 0.02 s an item on one idle core, so that a signal meets a running batch.
SIZE = {"width": 256, "layers": 5}
ITEMS = 40


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncodeLine]:
    """Shared: each test goes on with the worker that the test before it started last."""
    with opened(EncodeLine, tmp_path_factory.mktemp("end"), **SIZE) as line:
        yield line


@pytest.fixture
def known(line: EncodeLine) -> int:
    """How many embeddings there were before the test."""
    return line.store.embeddings.stats().entries


def in_the_middle(line: EncodeLine) -> list[EncodeMessage]:
    """Forty messages on their way: some done, some running, some queued."""
    messages = line.messages(ITEMS)
    line.publish(messages)
    wait_until(lambda: line.states(messages[0].job_id)[State.DONE] >= 4, within=60, what="some are done")
    assert line.states(messages[0].job_id)[State.DONE] < ITEMS
    return messages


def assert_all_done_once(line: EncodeLine, messages: list[EncodeMessage], known: int) -> None:
    view = line.wait_done(messages[0].job_id, within=90)
    assert {part.state for part in view.parts.values()} == {State.DONE}
    line.wait_acked(within=20)
    for message in messages:
        (entry,) = line.store.embeddings.lookup([message.wanted.key])
        assert entry is not None
        assert entry.metadata.content_digest == message.digest
    assert line.store.embeddings.stats().entries == known + len(messages)


def test_sigterm_finishes_the_batch_and_gives_the_rest_back(line: EncodeLine, known: int) -> None:
    """The first of these tests: a worker that ends less gracefully may leave a blob until it is swept."""
    worker = line.worker()
    messages = in_the_middle(line)
    assert line.end(worker, signal.SIGTERM) == 0
    assert line.broker.held() == 0
    done = line.states(messages[0].job_id)[State.DONE]
    assert 4 <= done < ITEMS
    assert line.waiting() == ITEMS - done, "what was done is acked, all else is back in the queue"
    line.start()
    assert_all_done_once(line, messages, known)
    line.wait_settled()


def test_sigquit_gives_all_back_at_once(line: EncodeLine, known: int) -> None:
    worker = line.worker()
    messages = in_the_middle(line)
    assert line.end(worker, signal.SIGQUIT, within=10) == 1
    assert line.broker.held() == 0
    assert line.waiting() >= ITEMS - line.states(messages[0].job_id)[State.DONE]
    line.start()
    assert_all_done_once(line, messages, known)


def test_every_lost_connection_is_made_again_and_nothing_is_lost(line: EncodeLine, known: int) -> None:
    worker = line.worker()
    messages = in_the_middle(line)
    assert int(line.broker.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")) > 0
    assert_all_done_once(line, messages, known)
    assert worker.poll() is None


def test_sigkill_in_the_middle_of_a_batch_loses_nothing(line: EncodeLine, known: int) -> None:
    worker = line.worker()
    messages = in_the_middle(line)
    assert line.end(worker, signal.SIGKILL) == -signal.SIGKILL
    assert line.broker.held() > 0
    line.start()
    assert_all_done_once(line, messages, known)
