"""Starts a Prefill and a Decode process and sends them requests, as a router would."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
_PACKAGE = "examples.epd_transformers"
#: Seconds for an engine to load its checkpoints, and to exit.
START_TIMEOUT, STOP_TIMEOUT = 120.0, 10.0

Answer = dict[str, Any]


class EngineFailed(Exception):
    """An engine process exited, or reported that a request failed."""


class Engine:
    """One engine process: a module that reads requests line by line. Several requests may be open."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._name = module
        self._lock = threading.Lock()
        self._open: dict[str | None, Future[Answer]] = {None: Future()}
        self._ready = self._open[None]
        self._reader = threading.Thread(target=self._read, name=module, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Wait until it is ready; raises ``EngineFailed`` when the process exits before."""
        self._ready.result(START_TIMEOUT)

    def ask(self, request: Mapping[str, Any]) -> Future[Answer]:
        """Send a request; the future gets its answer or ``EngineFailed``."""
        answer: Future[Answer] = Future()
        with self._lock:
            self._open[request["request_id"]] = answer
            if self._process.stdin is None or self._process.poll() is not None:
                raise EngineFailed(f"{self._name} has ended")
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._resolve(json.loads(line))
        with self._lock:
            for answer in self._open.values():
                answer.set_exception(EngineFailed(f"{self._name} has ended"))
            self._open.clear()

    def _resolve(self, message: Answer) -> None:
        with self._lock:
            answer = self._open.pop(message["request_id"])
        if "error" in message:
            answer.set_exception(EngineFailed(f"{self._name}: {message['error']}"))
        else:
            answer.set_result(message)

    def close(self) -> None:
        """Close its input and wait for its exit."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_TIMEOUT)


class EnginePair:
    """Prefill and Decode with the same checkpoints, which are given by encoder name in epd.toml."""

    def __init__(
        self, *, epd: str, kv: Path, checkpoints: Mapping[str, Path], workers: int = 1, threads: int = 1
    ) -> None:
        names = [f"{name}={folder}" for name, folder in checkpoints.items()]
        sizes = ["--workers", str(workers), "--threads", str(threads)]
        arguments = ["--epd", epd, "--kv", str(kv), *sizes, *names]
        self._engines = [Engine(f"{_PACKAGE}.{module}", *arguments) for module in ("prefill", "decode")]

    def __enter__(self) -> EnginePair:
        try:
            for engine in self._engines:
                engine.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: Mapping[str, Any]) -> tuple[Future[Answer], Future[Answer]]:
        """Send a request to both at once; Decode waits for Prefill."""
        prefill, decode = self._engines
        second = decode.ask({"request_id": request["request_id"]})
        return prefill.ask(request), second

    def close(self) -> None:
        """Stop both."""
        for engine in self._engines:
            engine.close()
