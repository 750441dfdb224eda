"""The two sides, started and stopped: one process, or epd's with Prefill and Decode."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ttft.load import Ask, Request
from epd.stack.parts import StackOptions
from epd.stack.stack import Stack
from examples.epd_transformers.pair import Engine, EnginePair

_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Layout:
    """How many prompts the model of a side computes at once, and torch threads for each."""

    workers: int
    threads: int


@dataclass
class Side:
    """One side. ``first`` has the first tokens by request id."""

    ask_bare: Ask
    first: dict[str, int] = field(default_factory=dict)
    rest: list[Future[Any]] = field(default_factory=list)

    def ask(self, request: Request) -> Future[Any]:
        """Send a request, and keep its first token."""
        answer = self.ask_bare(request)
        answer.add_done_callback(lambda done: self._note(request, done))
        return answer

    def _note(self, request: Request, done: Future[Any]) -> None:
        if done.exception() is None:
            self.first[request["request_id"]] = done.result()["tokens"][0]


@contextmanager
def colocated(checkpoint: Path, layout: Layout) -> Iterator[Side]:
    """A server that does everything itself."""
    engine = Engine("bench.ttft.colocated", str(checkpoint), str(layout.workers), str(layout.threads))
    try:
        engine.wait_ready()
        yield Side(engine.ask)
    finally:
        engine.close()


@contextmanager
def separate(checkpoint: Path, folder: Path, site: str, *, url_ttl: float, layout: Layout) -> Iterator[Side]:
    """The stack as ``epd up`` starts it, a Prefill and a Decode."""
    config = folder / "epd.toml"
    config.write_text(
        f'default_model = "qwen"\n[encoders.qwen]\nfamily = "qwen2_5_vl"\npath = "{checkpoint}"\n'
        'dtype = "float32"\n[models.qwen]\nimage = "qwen"\n',
        encoding="utf-8",
    )
    settings = {
        "EPD_FETCH_ALLOW_HOSTS": site.removeprefix("http://"),
        "EPD_URL_TTL": str(url_ttl),
        "EPD_TORCH_THREADS": "1",
    }
    options = StackOptions(config=config, data_dir=folder / "stack", downloads=16, overrides=settings)
    with Stack(options) as stack:
        stack.wait_ready()
        kv = stack.media_dir / "kv"
        kv.mkdir()
        with EnginePair(
            epd=stack.api_url,
            kv=kv,
            checkpoints={"qwen": checkpoint},
            workers=layout.workers,
            threads=layout.threads,
        ) as pair:
            decoded: list[Future[Any]] = []

            def ask(request: Request) -> Future[Any]:
                first, rest = pair.ask(request)
                decoded.append(rest)
                return first

            yield Side(ask)
            for answer in decoded:  # Decode has finished it too
                answer.result(_WAIT_SECONDS)
