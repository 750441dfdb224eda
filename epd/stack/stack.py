"""Supervises the whole stack on one machine: starts, watches and restarts its parts, and cleans up."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import httpx

from epd.config import load_config
from epd.contracts.errors import EpdError
from epd.settings import child_environment, require_folder
from epd.stack import parts
from epd.stack.parts import StackOptions, hold_data_dir
from epd.stack.process import Child

_CHECK_PERIOD = 0.1
_STOP_LIMIT = 8.0
_START_LIMIT = 180.0
_TRIES_BEFORE_READY = 3
#: The prefix of the log line in which a worker says why it cannot start; more lines may follow it.
_REASON = "gpu_worker: "
#: Settings that name folders. They are checked here, or a bad one would only fail the first request.
_FOLDERS = frozenset({"EPD_BLOB_DIR", "EPD_EMBEDDING_DIR", "EPD_L2_DIR"})

Progress = Callable[[str], None]


class StackFailed(EpdError):
    """A part of the stack did not start; the message has its reason or the end of its log."""

    code = "stack_failed"


class Stack:
    """A running stack: ``with Stack(options) as stack: stack.wait_ready(); use stack.api_url``."""

    def __init__(self, options: StackOptions) -> None:
        load_config(options.config)  # a bad config file fails here and not in a child's log
        parts.sweep_media_dirs()
        self.options = options
        self._api_port = parts.free_port(options.api_port)
        self._flower_port = None if options.flower_port is None else parts.free_port(options.flower_port)
        self._redis_port = parts.free_port(options.redis_port) if options.broker_url is None else 0
        self._broker_url = options.broker_url or f"redis://127.0.0.1:{self._redis_port}/0"
        self._store_url = options.store_url or parts.default_store_url(self._broker_url)
        for name in _FOLDERS & options.overrides.keys():
            require_folder(Path(options.overrides[name]), name)
        self._data_lock = hold_data_dir(options.data_dir)
        self.media_dir = parts.new_media_dir()  # last: nothing can fail after it and leave it behind
        self.settings = self._settings()
        self._children: dict[str, Child] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._supervisor: threading.Thread | None = None

    @property
    def api_url(self) -> str:
        """The URL of the API."""
        return f"http://{parts.reachable(self.options.api_host)}:{self._api_port}"

    @property
    def flower_url(self) -> str | None:
        """The URL of Flower; None when it does not run."""
        return None if self._flower_port is None else f"http://127.0.0.1:{self._flower_port}"

    def _settings(self) -> dict[str, str]:
        own = {
            "EPD_BROKER_URL": self._broker_url,
            "EPD_STORE_URL": self._store_url,
            "EPD_CONFIG": str(self.options.config.resolve()),
            "EPD_BLOB_DIR": str(self.media_dir / "blobs"),
            "EPD_EMBEDDING_DIR": str(self.media_dir / "embeddings"),
            "EPD_API_PORT": str(self._api_port),
            "EPD_FETCH_DOWNLOADS": str(self.options.downloads),
            "EPD_DECODE_PROCESSES": str(self.options.decode_processes),
        }
        return own | dict(self.options.overrides)

    def __enter__(self) -> Stack:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every process, without waiting until they are ready."""
        environment = child_environment(self.settings)
        specs = [*parts.worker_specs(self.options), parts.api_spec(self.options.api_host, self._api_port)]
        if self.options.broker_url is None:
            specs.insert(0, parts.redis_spec(self._redis_port, self.options.data_dir))
        if self._flower_port is not None:
            specs.append(parts.flower_spec(self._flower_port))
        logs = self.options.data_dir / "logs"
        for spec in specs:
            log_path = logs / f"{spec.name}.log"
            log_path.unlink(missing_ok=True)
            self._children[spec.name] = Child(spec, log_path, environment)
        # The supervisor starts the children too: a child dies with the thread that started it.
        self._supervisor = threading.Thread(target=self._supervise, name="stack", daemon=True)
        self._supervisor.start()

    def _supervise(self) -> None:
        self._start_and_watch()
        # The children die with this thread, so it lives until those that ``stop`` asked to end have ended.
        self._stopped.wait(_STOP_LIMIT + 2)

    def _start_and_watch(self) -> None:
        for child in self._children.values():
            with self._lock:
                if self._stopping.is_set():
                    return
                child.start()
        while not self._stopping.wait(_CHECK_PERIOD):
            with self._lock:
                if not self._stopping.is_set():
                    for child in self._children.values():
                        child.check()

    def wait_ready(
        self,
        timeout: float = _START_LIMIT,
        progress: Progress | None = None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until every kind of worker is ready, or ``give_up`` returns True.

        Args:
            timeout: seconds to wait.
            progress: receives what is not ready yet, again and again.
            give_up: ends the wait without an error.

        Raises:
            StackFailed: the time is over, a part cannot start, or it died repeatedly during the wait.
        """
        end = time.monotonic() + timeout
        restarts = {name: child.restarts for name, child in self._children.items()}
        missing = "starting"
        while time.monotonic() < end and not give_up():
            missing = self._not_ready()
            if not missing:
                return
            if progress is not None:
                progress(missing)
            self._raise_if_hopeless(restarts)
            time.sleep(0.2)
        if give_up():
            return
        raise StackFailed(f"not ready after {timeout:.0f} s: {missing}\n{self._all_tails()}")

    def _not_ready(self) -> str:
        try:
            answer = httpx.get(f"{self.api_url}/readyz", timeout=2)
            if answer.status_code == httpx.codes.OK:
                return self._flower_not_ready()
            body = answer.json()
            return str(body.get("detail") or body)
        except (httpx.HTTPError, ValueError):
            return "api: starting"

    def _flower_not_ready(self) -> str:
        if self.flower_url is None:
            return ""
        try:
            httpx.get(f"{self.flower_url}/healthcheck", timeout=2)
        except httpx.HTTPError:
            return "flower: starting"
        return ""

    def raise_if_one_cannot_start(self) -> None:
        """Raise ``StackFailed`` with the reason when a part exited because it cannot start (status 78)."""
        for child in self._children.values():
            if child.cannot_start:
                raise StackFailed(
                    f"{child.spec.name} cannot start: {child.last_log_line(_REASON)} (log: {child.log_path})"
                )

    def _raise_if_hopeless(self, before: Mapping[str, int]) -> None:
        self.raise_if_one_cannot_start()
        for name, child in self._children.items():
            if child.restarts - before[name] >= _TRIES_BEFORE_READY:
                raise StackFailed(f"{name} keeps dying; the end of its log:\n{child.log_tail()}")

    def _all_tails(self) -> str:
        return "\n".join(f"--- {name}\n{child.log_tail(8)}" for name, child in self._children.items())

    def names(self) -> list[str]:
        """The names of the parts."""
        return list(self._children)

    def pid(self, name: str) -> int | None:
        """The process id of a part, None while it is down."""
        return self._children[name].pid

    def restarts(self, name: str) -> int:
        """How often a part was restarted."""
        return self._children[name].restarts

    def log_tail(self, name: str, lines: int = 40) -> str:
        """The last lines of a part's log."""
        return self._children[name].log_tail(lines)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a part; if it dies, it is restarted."""
        self._children[name].signal(number)

    def hold(self, name: str) -> None:
        """Do not restart a part that dies, until ``release``. For tests of what the others do without it."""
        with self._lock:
            self._children[name].hold()

    def release(self, name: str) -> None:
        """Restart a part again when it dies; if it is down, it starts at once."""
        with self._lock:
            self._children[name].release()

    def stop(self) -> None:
        """Stop all parts in order, within ten seconds, and remove their media folder."""
        self._stopping.set()
        end = time.monotonic() + _STOP_LIMIT
        with self._lock:
            for child in sorted(self._children.values(), key=lambda child: child.spec.stop_order):
                if child.spec.name == "redis":  # workers need it to requeue their work
                    self._await_workers(end)
                child.signal(child.spec.stop_signal)
            for child in self._children.values():
                child.wait(max(0.1, end + 1 - time.monotonic()))
                child.kill_group()
        self._stopped.set()
        if self._supervisor is not None:
            self._supervisor.join(2)
        with contextlib.suppress(OSError):
            shutil.rmtree(self.media_dir)
        self._data_lock.close()

    def _await_workers(self, end: float) -> None:
        for child in self._children.values():
            if child.spec.name != "redis" and not child.wait(max(0.1, end - time.monotonic())):
                child.kill_group()
