"""Rows over a socket: large embeddings, slow readers, and embeddings removed during a read."""

from __future__ import annotations

import json
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from test_api_server import Fleet, Server, wait_until

from epd.client import Client, Slice
from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.errors import NotFound, RowsNotThere
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.store.values import Completed

ROWS, HIDDEN = 3000, 1024  # 12 MB each: far over what sockets buffer


@pytest.fixture
def fleet(tmp_path: Path, real_server_url: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, f"{real_server_url}/5")
    yield fleet
    fleet.stop()


def put(fleet: Fleet, number: int) -> tuple[str, np.ndarray]:
    """An embedding of the fleet's store, and its values."""
    key = f"{number:064x}"
    values = np.random.default_rng(number).standard_normal((ROWS, HIDDEN), dtype=np.float32)
    ref = EmbeddingRef(key=key, shape=values.shape, dtype="float32", nbytes=values.nbytes)
    metadata = Metadata(
        embedding_key=key, content_digest="c" * 64, modality=Modality.IMAGE, encoder="eye", dtype="float32",
        token_count=ROWS, hidden=HIDDEN,
    )  # fmt: skip
    fleet.store.embeddings.publish_file(ref, memoryview(values.tobytes()), {})
    done = Completed(Entry(ref=ref, metadata=metadata), "0" * 32, PartId(0, Modality.IMAGE), {})
    fleet.store.flights.complete([done])
    return key, values


def test_slices_of_large_embeddings_come_whole(fleet: Fleet) -> None:
    server = fleet.serve()
    made = [put(fleet, number) for number in range(3)]
    ranges = [(0, 5, None), (1, 0, 2999), (2, 2000, 2001), (0, 0, None)]
    wanted = [Slice(key=made[which][0], start=start, stop=stop) for which, start, stop in ranges]
    with Client(server.url) as epd:
        for found, (which, start, stop) in zip(epd.slices(wanted), ranges, strict=True):
            np.testing.assert_array_equal(found, made[which][1][start:stop])
        with pytest.raises(NotFound, match="e" * 64):
            epd.slices([wanted[0], Slice(key="e" * 64)])
        with pytest.raises(RowsNotThere, match="of 3000 tokens"):
            epd.slices([Slice(key=made[0][0], stop=3001)])


def ask_slowly(server: Server, path: str) -> socket.socket:
    """A request whose answer is not read yet."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.settimeout(30)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    return client


def rest_of(client: socket.socket) -> bytes:
    whole = bytearray()
    while piece := client.recv(1 << 20):
        whole += piece
    client.close()
    return bytes(whole)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_row_is_copied_into_the_servers_memory(fleet: Fleet, method: str) -> None:
    server = fleet.serve()
    key, _ = put(fleet, 1)
    body = json.dumps({"slices": [{"key": key}, {"key": key, "start": 5}]}) if method == "POST" else ""
    target = "/v1/embeddings/slices" if method == "POST" else f"/v1/embeddings/{key}"
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sink = bytearray(1 << 16)
    for traced in (False, True):  # the first one builds routes and connections
        if traced:
            tracemalloc.start()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.settimeout(30)
            client.sendall(head.encode() + body.encode())
            received = 0
            while count := client.recv_into(sink):
                received += count
        assert received > ROWS * HIDDEN * 4
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 512 << 10, "a piece of 1 MiB was copied"


def test_an_embedding_that_is_removed_while_it_is_sent_comes_whole(fleet: Fleet) -> None:
    server = fleet.serve()
    key, values = put(fleet, 1)
    client = ask_slowly(server, f"/v1/embeddings/{key}?format=raw")
    begin = client.recv(1 << 16)
    fleet.store.embeddings.remove([key])
    whole = begin + rest_of(client)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    np.testing.assert_array_equal(np.frombuffer(body, "<f4").reshape(ROWS, HIDDEN), values)
    assert httpx.get(f"{server.url}/v1/embeddings/{key}").status_code == 404


def test_readers_that_leave_leave_no_file_and_no_mapping(fleet: Fleet) -> None:
    server = fleet.serve()
    key, _ = put(fleet, 1)
    httpx.get(f"{server.url}/v1/embeddings/{key}")
    process = psutil.Process()

    def held() -> int:
        return sum(key in one.path for one in process.memory_maps() + process.open_files())

    clients = [ask_slowly(server, f"/v1/embeddings/{key}") for _ in range(8)]
    for client in clients:
        assert client.recv(1 << 10)
    assert held() > 0
    for client in clients:
        client.close()
    wait_until(lambda: held() == 0)
