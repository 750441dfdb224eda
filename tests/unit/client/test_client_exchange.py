"""The blocking client on real sockets: timeouts, kept connections, logins, and servers that break."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from epd.client import Client, Unreachable
from epd.client.transport import Transport
from epd.contracts.errors import NotFound

pytestmark = pytest.mark.unit

EVENT = b'data: {"job_id":"j","index":0,"type":"image","state":"done","job_state":"done"}\n\n'


@dataclass
class Seen:
    """What a server saw: a connection's port and a path for each request; and how long it takes."""

    port: int = 0
    delay: float = 0.0
    requests: list[tuple[int, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Seen]:
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.requests.append((self.client_address[1], self.path))
            seen.headers.append(dict(self.headers))
            seen.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            time.sleep(seen.delay)
            status = 404 if "gone" in self.path else 200
            body = b'{"code":"not_found","detail":"no such job"}' if status == 404 else b'{"ok":1}'
            self.send_response(status)
            if self.path.endswith("/events") and status == 200:
                self.end_headers()
                self.wfile.write(b": hello\n\n" + EVENT * 2)
                self.close_connection = True
                return
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        seen.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield seen
        listening.shutdown()
        thread.join(5)


@contextlib.contextmanager
def exchange_with(url: str, timeout: float = 5.0) -> Iterator[Transport]:
    exchange = Transport(url, timeout)
    yield exchange
    exchange.close()


def test_a_connection_is_kept_and_given_up_when_the_server_closed_it(server: Seen) -> None:
    with exchange_with(f"http://127.0.0.1:{server.port}") as exchange:
        for _ in range(3):
            assert exchange.send("GET", "/a").content == b'{"ok":1}'
        assert len({port for port, _ in server.requests}) == 1
        list(exchange.lines("/events"))  # the server closes behind it
        assert exchange.send("GET", "/a").status == 200


def test_a_waiting_request_has_a_longer_timeout(server: Seen) -> None:
    server.delay = 0.6
    with exchange_with(f"http://127.0.0.1:{server.port}", timeout=0.2) as exchange:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
            exchange.send("GET", "/a")
        assert time.monotonic() - began < 0.55
        assert exchange.send("GET", "/a", wait=2.0).status == 200


def test_prefix_login_and_odd_names_are_sent(server: Seen) -> None:
    with exchange_with(f"http://me:s3@127.0.0.1:{server.port}/epd/") as exchange:
        exchange.send("POST", "/v1/x y?wait=3", body=b"{}", headers={"Content-Type": "application/json"})
        server.delay = 0.3
    with exchange_with(f"http://me:s3cret@127.0.0.1:{server.port}/epd/", 0.1) as exchange:
        with pytest.raises(Unreachable) as caught:
            exchange.send("GET", "/")
        assert "s3cret" not in str(caught.value)
    assert server.requests[0][1] == "/epd/v1/x%20y?wait=3"
    assert server.headers[0]["authorization"] == f"Basic {base64.b64encode(b'me:s3').decode()}"
    assert (server.headers[0]["Content-Type"], server.bodies[0]) == ("application/json", b"{}")


def test_a_file_is_sent_with_its_length(server: Seen, tmp_path: object) -> None:
    path = tmp_path / "big"  # type: ignore[operator]
    path.write_bytes(b"x" * 3_000_000)
    with Client(f"http://127.0.0.1:{server.port}") as client, pytest.raises(Unreachable, match="epd server"):
        client.upload(path)  # the answer is not that of an epd server
    assert server.bodies[0] == path.read_bytes()
    assert "Transfer-Encoding" not in server.headers[0]


def test_events_come_line_by_line_and_a_problem_is_its_error(server: Seen) -> None:
    with Client(f"http://127.0.0.1:{server.port}") as client:
        assert [event.state for event in client.events("j")] == ["done", "done"]
        with pytest.raises(NotFound, match="no such job"):
            list(client.events("gone"))


def test_unreachable_and_broken_servers_are_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(Unreachable):
            client.status()
        thread.join(5)
    with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(Unreachable, match=rf"http://127\.0\.0\.1:{port}"):
            client.status()
        with pytest.raises(Unreachable):
            list(client.events("j"))
