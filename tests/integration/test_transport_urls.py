"""Ordinary broker URLs of every kind reach our transport: password, database, unix socket, TLS."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest
import redis
from kombu import Connection, Exchange, Queue

from tasks.transport.kombu import Transport, register
from tests.integration.transport_kit import wait_until
from tests.server_under_test import server_binary

PASSWORD = "pass:word"
QUOTED = "pass%3Aword"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """A server with a password; its port and its unix socket."""
    folder = tmp_path_factory.mktemp("srv")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = folder / "s"
    flags = ["--port", str(port), "--unixsocket", str(path), "--requirepass", PASSWORD, "--save", ""]
    process = subprocess.Popen(
        [server_binary(), *flags, "--dir", str(folder), "--logfile", str(folder / "log")]
    )
    with redis.Redis(port=port, password=PASSWORD) as client:
        wait_until(client.ping, within=10, what="server up")
    yield port, path
    process.kill()
    process.wait(10)


@pytest.fixture
def tls_port(server: tuple[int, Path], tmp_path: Path) -> Iterator[int]:
    """A port that speaks TLS and passes all on to the server: the embedded server has no TLS of its own."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert"), "-subj", "/CN=localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=pass_on, args=(listener, context, server[0]), daemon=True)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(5)


def pass_on(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            outside, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=join_ends, args=(outside, context, port), daemon=True).start()


def join_ends(outside: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """Pump bytes both ways in one thread, until either end closes."""
    with (
        context.wrap_socket(outside, server_side=True) as secure,
        socket.create_connection(("127.0.0.1", port)) as inside,
    ):
        secure.settimeout(0.01)
        inside.settimeout(0.01)
        while all(pump(*ends) for ends in ((secure, inside), (inside, secure))):
            pass


def pump(source: socket.socket, sink: socket.socket) -> bool:
    try:
        received = source.recv(65536)
        sink.sendall(received)
    except TimeoutError:
        return True
    except OSError:
        return False
    return bool(received)


def round_trip(url: str) -> None:
    """Publish, take, hand back, take again and ack, all without an event loop."""
    register()
    queue = Queue("q", Exchange("q"), routing_key="q")
    taken: list[dict[str, int]] = []
    with Connection(url) as connection:
        assert isinstance(connection.transport, Transport)
        with connection.Producer() as producer:
            producer.publish({"n": 1}, exchange=queue.exchange, routing_key="q", declare=[queue])
        bound = queue(connection.default_channel)
        message = bound.get()
        assert (message.payload, message.headers["epd_deliveries"]) == ({"n": 1}, 0)
        message.requeue()
        with connection.Consumer([queue], callbacks=[lambda body, kept: (taken.append(body), kept.ack())]):
            connection.drain_events(timeout=3)
        assert taken == [{"n": 1}]
        assert bound.get() is None
        with pytest.raises(Empty):
            connection.default_channel._get("q")
        channel = connection.default_channel
        assert channel._size("q") == 0
        ledger = channel.session.ledger
        assert ledger.client.hlen(f"epd:unacked:{ledger.session}") == 0


def test_password_and_database(server: tuple[int, Path]) -> None:
    round_trip(f"redis://:{QUOTED}@127.0.0.1:{server[0]}/3")
    with redis.Redis(port=server[0], password=PASSWORD, db=3) as client:
        assert client.exists("epd:receipts")
        assert not client.hlen("epd:sessions"), "a closed channel left its session"


def test_unix_socket(server: tuple[int, Path]) -> None:
    round_trip(f"redis+socket://:{PASSWORD}@{server[1]}?virtual_host=2")


def test_tls(tls_port: int) -> None:
    round_trip(f"rediss://:{QUOTED}@127.0.0.1:{tls_port}/4?ssl_cert_reqs=none")
