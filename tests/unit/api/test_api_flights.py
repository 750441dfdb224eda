"""A job that ends early leaves its flights at once; who waits there goes on without it."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.identity import source_key
from epd.lookup import cards_of, needs_of
from epd.store.values import Claim, SourceMemo, Waiter
from tests.unit.api.rest_kit import Rest

URL = "http://media.test/cat.png"
DATA = b"a picture"
INLINE = {"type": "image", "data": base64.b64encode(DATA).decode()}
LINKED = {"type": "image", "url": URL}


@pytest.fixture
def shared(rest: Rest) -> Rest:
    """No worker acts, and the URL's digest is known from before."""
    rest.worker.go.clear()
    memo = SourceMemo(digest=hashlib.sha256(DATA).hexdigest(), fetched_at=time.time() - 1e6, nbytes=9)
    rest.store.sources.put(source_key(URL), memo)
    return rest


def claim(rest: Rest, number: int) -> tuple[str, Claim]:
    """What a fetch worker does with the message of a job; the embedding key and the answer."""
    message = rest.worker.published[number]
    (item,) = message.items
    _, model = rest.worker.config.model(message.model)
    digest = hashlib.sha256(DATA).hexdigest()
    key = needs_of(item, digest, model=model, cards=cards_of(model, rest.store.cards)).main.key
    waiter = Waiter(message.job_id, PartId(0, Modality.IMAGE), message.to_json())
    return key, rest.store.flights.claim(key, waiter)


@pytest.mark.parametrize("item", [INLINE, LINKED], ids=["upload", "url"])
def test_the_flight_of_a_cancelled_job_is_passed_on_at_once(shared: Rest, item: dict[str, object]) -> None:
    jobs = [shared.encode(item, wait=0, status=202)["job_id"] for _ in range(2)]
    assert [claim(shared, number)[1] for number in (0, 1)] == [Claim.OWNED, Claim.WAITING]
    assert shared.client.delete(f"/v1/jobs/{jobs[0]}").json()["state"] == "cancelled"
    assert [message.job_id for message in shared.worker.published] == [*jobs, jobs[1]]
    assert claim(shared, 2)[1] is Claim.OWNED


def test_a_cancelled_waiter_leaves_the_flight_to_its_owner(shared: Rest) -> None:
    jobs = [shared.encode(INLINE, wait=0, status=202)["job_id"] for _ in range(2)]
    assert [claim(shared, number)[1] for number in (0, 1)] == [Claim.OWNED, Claim.WAITING]
    shared.client.delete(f"/v1/jobs/{jobs[1]}")
    assert len(shared.worker.published) == 2
    assert claim(shared, 0)[1] is Claim.OWNED


def test_an_expired_job_passes_its_flight_on_too(shared: Rest) -> None:
    late = shared.encode(INLINE, wait=0, deadline=0.2, status=202)["job_id"]
    other = shared.encode(INLINE, wait=0, status=202)["job_id"]
    assert [claim(shared, number)[1] for number in (0, 1)] == [Claim.OWNED, Claim.WAITING]
    answer = shared.client.get(f"/v1/jobs/{late}", params={"wait": 5}).json()
    assert answer["state"] == "expired"
    assert shared.worker.published[-1].job_id == other


def test_a_broker_that_is_down_does_not_keep_a_job_from_being_cancelled(shared: Rest) -> None:
    jobs = [shared.encode(INLINE, wait=0, status=202)["job_id"] for _ in range(2)]
    key, _ = claim(shared, 0)
    claim(shared, 1)
    shared.worker.failing = StoreUnavailable("no broker")
    assert shared.client.delete(f"/v1/jobs/{jobs[0]}").json()["state"] == "cancelled"
    shared.worker.failing = None
    waiter = Waiter(jobs[1], PartId(0, Modality.IMAGE), shared.worker.published[1].to_json())
    assert shared.store.flights.claim(key, waiter) is Claim.OWNED, "free for whoever comes first"
