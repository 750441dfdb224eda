"""Callers that leave while their request waits, on real sockets: the job goes on, or is cancelled at once."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from test_api_server import CAT, Fleet, Server, wait_until

from epd.contracts.job import JobView, PartId, State
from epd.contracts.media import Modality
from epd.store.admissions import Load

IMAGE = PartId(0, Modality.IMAGE)


@pytest.fixture
def fleet(tmp_path: Path, real_server_url: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, f"{real_server_url}/8")
    yield fleet
    fleet.stop()


def ask(fleet: Fleet, server: Server, **fields: object) -> tuple[socket.socket, str]:
    """A request that waits, on a plain socket, and the id of its job."""
    fleet.worker.go.clear()
    before = len(fleet.worker.published)
    body = json.dumps({"items": [CAT], "wait": 120, **fields}).encode()
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"POST /v1/encode HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_until(lambda: len(fleet.worker.published) > before)
    wait_until(lambda: server.services.completions.waiting == 1)
    return client, fleet.worker.published[-1].job_id


def view_of(fleet: Fleet, job_id: str) -> JobView:
    view = fleet.store.jobs.view(job_id)
    assert view is not None
    return view


def metric(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("abrupt", [False, True], ids=["close", "reset"])
def test_a_caller_that_asked_for_it_has_its_job_cancelled(fleet: Fleet, abrupt: bool) -> None:
    server = fleet.serve()
    client, job_id = ask(fleet, server, on_disconnect="cancel")
    assert fleet.store.admissions.held().items == 1
    if abrupt:  # no goodbye: the connection is reset
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    left = time.monotonic()
    client.close()
    wait_until(lambda: view_of(fleet, job_id).state is State.CANCELLED)
    assert time.monotonic() - left < 1, "the end of the connection told it, not a poll"
    view = view_of(fleet, job_id)
    error = view.parts[str(IMAGE)].error
    assert error is not None
    assert error.code == "cancelled"
    assert fleet.store.admissions.held() == Load(0, 0)
    assert metric(server, "epd_disconnect_cancels_total") == 1
    fleet.worker.go.set()
    wait_until(lambda: server.services.completions.waiting == 0)
    assert view_of(fleet, job_id).state is State.CANCELLED


@pytest.mark.parametrize("fields", [{}, {"on_disconnect": "continue"}], ids=["default", "said"])
def test_any_other_job_goes_on(fleet: Fleet, fields: dict[str, object]) -> None:
    server = fleet.serve()
    client, job_id = ask(fleet, server, **fields)
    client.close()
    wait_until(lambda: server.services.completions.waiting == 0)
    assert view_of(fleet, job_id).state is State.QUEUED
    fleet.worker.go.set()
    wait_until(lambda: view_of(fleet, job_id).state is State.DONE)
    assert metric(server, "epd_disconnect_cancels_total") == 0


def test_leaving_after_the_answer_cancels_nothing(fleet: Fleet) -> None:
    server = fleet.serve()
    fleet.worker.go.clear()
    with httpx.Client(base_url=server.url) as client:
        answer = client.post("/v1/encode", json={"items": [CAT], "wait": 0.2, "on_disconnect": "cancel"})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    fleet.worker.go.set()
    wait_until(lambda: view_of(fleet, answer.json()["job_id"]).state is State.DONE)


def test_a_caller_that_stays_gets_its_answer(fleet: Fleet) -> None:
    server = fleet.serve()
    client, _ = ask(fleet, server, on_disconnect="cancel")
    fleet.worker.go.set()
    client.settimeout(20)
    assert client.recv(15).startswith(b"HTTP/1.1 200")
    client.close()


def test_a_wait_of_get_ends_when_its_caller_leaves(fleet: Fleet) -> None:
    server = fleet.serve()
    fleet.worker.go.clear()
    job = httpx.post(f"{server.url}/v1/encode", json={"items": [CAT], "wait": 0}).json()
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(f"GET /v1/jobs/{job['job_id']}?wait=100 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    wait_until(lambda: server.services.completions.waiting == 1)
    client.close()
    wait_until(lambda: server.services.completions.waiting == 0, seconds=1)
    assert view_of(fleet, job["job_id"]).state is State.QUEUED
