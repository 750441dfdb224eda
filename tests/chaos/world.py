"""A whole stack for chaos: broker and store are two servers, and there are two fetch and two GPU workers."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from epd.settings import child_environment
from epd.stack.parts import StackOptions
from epd.stack.process import Child, Spec
from epd.stack.stack import Stack
from tests.chaos.corpus import Corpus
from tests.chaos.ledger import Ledger
from tests.chaos.load import Load
from tests.chaos.notices import NoticeWatch
from tests.chaos.server import Server
from tests.chaos.site import Site

#: The second fetch worker, which takes over when the stack's own is killed.
SECOND_FETCH = "fetch2"


@dataclass(frozen=True, slots=True)
class Setup:
    """What differs between stacks. ``settings`` are variables of every process, EPD_* mostly.

    ``{world}`` in a value is the folder of the world.
    """

    settings: tuple[tuple[str, str], ...] = (("EPD_MAX_DELIVERIES", "50"),)
    gpu_workers: int = 2

    def variables(self, folder: Path) -> dict[str, str]:
        """The settings by name, for a world in this folder."""
        return {name: value.replace("{world}", str(folder)) for name, value in self.settings}


#: A message may be in many workers that die: the storms kill far more often than life does.
USUAL = Setup()


@dataclass
class World:
    """Made by ``with World(...)``: servers first, then the stack; ended in the other order."""

    setup: Setup
    config: Path
    folder: Path
    seed: int
    broker: Server = field(init=False)
    store: Server = field(init=False)
    stack: Stack = field(init=False)

    def __post_init__(self) -> None:
        self.site = Site()
        self.corpus = Corpus(self.seed)
        self.broker = Server(self.folder / "broker")
        self.store = Server(self.folder / "store")
        self._second: Child | None = None
        self._hands: list[threading.Thread] = []

    def __enter__(self) -> World:
        self.site.start()
        self.broker.start()
        self.store.start()
        try:
            self.stack = Stack(self._options())
            self.stack.start()
            self._second = self._second_fetch()
            self.stack.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything."""
        if self._second is not None:
            self._second.kill_group()
        if hasattr(self, "stack"):
            self.stack.stop()
        self.broker.close()
        self.store.close()
        self.site.close()

    def _options(self) -> StackOptions:
        own = {
            "EPD_TORCH_THREADS": "1",
            "EPD_FETCH_ALLOW_HOSTS": self.site.authority,
            **self.setup.variables(self.folder),
        }
        return StackOptions(
            config=self.config,
            data_dir=self.folder / "stack",
            broker_url=self.broker.url(0),
            store_url=self.store.url(0),
            downloads=8,
            split=True,
            decode_processes=2,
            gpu_workers=self.setup.gpu_workers,
            overrides=own,
        )

    def _second_fetch(self) -> Child:
        argv = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-Q", "fetch"]
        spec = Spec(SECOND_FETCH, [*argv, "-c", "8", "-n", f"{SECOND_FETCH}@%h"], stop_order=2)
        child = Child(spec, self.folder / "fetch2.log", child_environment(self.stack.settings))
        child.start()
        return child

    def new_load(self, dice: random.Random) -> Load:
        """Clients with an empty ledger."""
        return Load(self.stack.api_url, self.site, Ledger(), dice)

    def new_watch(self) -> NoticeWatch:
        """A listener on the store."""
        return NoticeWatch(self.store.url(0))


def wait_until(condition: Callable[[], object], limit: float) -> bool:
    """Poll until the condition holds; False after ``limit`` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
