"""What the kits of real workers share: a server, one environment, the store, processes and a publisher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from epd.contracts.job import JobView
from epd.contracts.messages import EncodeMessage, FetchMessage
from epd.settings import Settings
from epd.store.open import open_store
from tests.integration.transport_kit import ROOT, Broker

_CONFIG = """
default_model = "demo"
[encoders.eye]
family = "dinov2"
path = "{eye}"
dtype = "float32"
[encoders.ear]
family = "whisper"
path = "{ear}"
dtype = "float32"
[models.demo]
image = "eye"
video = "eye"
audio = "ear"
"""

#: Reads lines of [stage, task id or "", messages] and publishes them. Celery's settings are one a process.
_PUBLISH = """
import json, sys
from epd.contracts.messages import EncodeMessage, FetchMessage
from tasks import publish
stages = {"fetch": (publish.publish_fetch, FetchMessage), "encode": (publish.publish_encode, EncodeMessage)}
own = publish.task_id
for line in sys.stdin:
    stage, task_id, messages = json.loads(line)
    send, kind = stages[stage]
    publish.task_id = (lambda stage, message: task_id) if task_id else own
    send([kind.from_json(text) for text in messages])
    print("published", flush=True)
"""

_LineT = TypeVar("_LineT", bound="ProcessLine")


class ProcessLine:
    """Workers of the real application on one server and one folder, and what a test needs of their store."""

    def __init__(self, broker: Broker, folder: Path, *, eye: str, ear: str, **environment: str) -> None:
        self.broker = broker
        self.folder = folder
        (folder / "epd.toml").write_text(_CONFIG.format(eye=eye, ear=ear))
        self.settings = Settings(
            broker_url=broker.url,
            store_url=broker.url.replace("/0", "/1"),
            blob_dir=folder / "blobs",
            embedding_dir=folder / "embeddings",
        )
        self.environment = {
            "EPD_BROKER_URL": self.settings.broker_url,
            "EPD_STORE_URL": str(self.settings.store_url),
            "EPD_CONFIG": str(folder / "epd.toml"),
            "EPD_BLOB_DIR": str(folder / "blobs"),
            "EPD_EMBEDDING_DIR": str(folder / "embeddings"),
            **environment,
        }
        self.store = open_store(self.settings)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._publisher: subprocess.Popen[str] | None = None

    @property
    def log(self) -> Path:
        """What all workers write."""
        return self.folder / "worker.log"

    def run(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start ``python -m command`` in a process group of its own."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=self.folder, stdout=log, stderr=log,
                start_new_session=True, env=self.process_environment(**environment),
            )  # fmt: skip
        self.processes.append(process)
        return process

    def celery(self, *arguments: str) -> str:
        """The output of a ``celery -A tasks`` command."""
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tasks", *arguments], cwd=self.folder, check=False,
            env=self.process_environment(), capture_output=True, timeout=40, text=True,
        )  # fmt: skip
        return done.stdout + done.stderr

    def send(
        self, stage: str, messages: Sequence[FetchMessage | EncodeMessage], *, task_id: str = ""
    ) -> None:
        """Publish to a stage's queue, through the real publisher."""
        if self._publisher is None:
            self._publisher = subprocess.Popen(
                [sys.executable, "-c", _PUBLISH], env=self.process_environment(), cwd=self.folder,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._publisher.stdin is not None
        assert self._publisher.stdout is not None
        self._publisher.stdin.write(json.dumps([stage, task_id, [one.to_json() for one in messages]]) + "\n")
        self._publisher.stdin.flush()
        assert self._publisher.stdout.readline() == "published\n"

    def view(self, job_id: str) -> JobView:
        """The present state of a job."""
        view = self.store.jobs.view(job_id)
        assert view is not None
        return view

    def process_environment(self, **more: str) -> dict[str, str]:
        """The environment of a worker. Modules in the folder of the line come first."""
        return {**os.environ, **self.environment, **more, "PYTHONPATH": f"{self.folder}:{ROOT}"}

    def close(self) -> None:
        """Kill every process."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        if self._publisher is not None:
            self._publisher.kill()
            self._publisher.communicate()


@contextmanager
def opened(
    make: Callable[..., _LineT], folder: Path, *, persistent: bool = False, **options: Any
) -> Iterator[_LineT]:
    """A line on a server of its own; at the end no process of either is left."""
    broker = Broker(folder, persistent=persistent)
    broker.start()
    line = None
    try:
        line = make(broker, folder, **options)
        yield line
    finally:
        if line is not None:
            line.close()
        broker.close()
