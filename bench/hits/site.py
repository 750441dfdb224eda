"""A whole stack as ``epd up`` runs it, with a tiny encoder, and images that it has encoded."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil

from bench.cli import folder_in_memory
from bench.engine.rig import Size, load_random
from bench.hits.load import Request
from bench.images import served, thumbnails
from epd.stack.parts import StackOptions
from epd.stack.stack import Stack

#: Images of a request.
ITEMS = 8
_TINY = Size("tiny", width=64, layers=2, heads=2, side=56)
_WAIT = 60.0


class Kind(StrEnum):
    """How a request names its images."""

    URL = "url"  #: fetched once, then known for EPD_URL_TTL
    MEDIA_ID = "media_id"  #: uploads, whose id is the digest
    DATA = "data"  #: base64 inside the request
    MIXED = "mixed"  #: these in turn


@dataclass(frozen=True, slots=True)
class Site:
    """A running stack. ``keys`` are the embedding keys of ``files``, which are all in the cache."""

    stack: Stack
    files_url: str
    files: Sequence[bytes]
    http: HTTPConnection
    keys: tuple[str, ...] = ()

    @property
    def port(self) -> int:
        """The port of the API."""
        return int(self.stack.api_url.rpartition(":")[2])

    def process(self, name: str) -> psutil.Process:
        """The process of a part of the stack. Raises ``RuntimeError`` if it is down."""
        pid = self.stack.pid(name)
        if pid is None:
            raise RuntimeError(f"{name} is down:\n{self.stack.log_tail(name)}")
        return psutil.Process(pid)

    def item(self, kind: Kind, number: int) -> dict[str, Any]:
        """One image as an item of a request."""
        match kind:
            case Kind.URL:
                return {"type": "image", "url": f"{self.files_url}/{number}.jpg"}
            case Kind.MEDIA_ID:
                return {"type": "image", "media_id": hashlib.sha256(self.files[number]).hexdigest()}
            case Kind.DATA:
                return {"type": "image", "data": base64.b64encode(self.files[number]).decode()}
            case Kind.MIXED:
                return self.item((Kind.URL, Kind.MEDIA_ID, Kind.DATA)[number % 3], number)

    def requests(self, kind: Kind, count: int, seed: int) -> tuple[Request, ...]:
        """Requests of random images."""
        chance = random.Random(seed)
        drawn = [chance.sample(range(len(self.files)), ITEMS) for _ in range(count)]
        return tuple(
            Request(
                body=json.dumps({"items": [self.item(kind, number) for number in numbers]}),
                keys=tuple(self.keys[number] for number in numbers),
            )
            for numbers in drawn
        )

    def encode(self, items: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], float]:
        """Encode items and wait. Returns the items of the answer, and the seconds that it took.

        Raises:
            RuntimeError: not all of them were encoded.
        """
        body = json.dumps({"items": items, "wait": _WAIT})
        began = time.perf_counter()
        self.http.request("POST", "/v1/encode", body, {"Content-Type": "application/json"})
        with self.http.getresponse() as response:
            text, status = response.read(), response.status
        seconds = time.perf_counter() - began
        answer = json.loads(text)
        if status != 200 or answer["state"] != "done":
            raise RuntimeError(f"items were not encoded: {text[:1000]!r}")
        return answer["items"], seconds


@contextmanager
def running_site(count: int) -> Iterator[Site]:
    """A site with so many images in its cache, each known by every kind of source."""
    with (
        folder_in_memory("epd-hits-") as folder,
        _served(thumbnails(count, seed=1)) as (files, url),
        Stack(_options(folder, url)) as stack,
    ):
        stack.wait_ready()
        http = HTTPConnection(stack.api_url.removeprefix("http://"), timeout=2 * _WAIT)
        with closing(http):
            bare = Site(stack, url, files, http)
            yield Site(stack, url, files, http, _warmed(bare))


@contextmanager
def _served(files: list[bytes]) -> Iterator[tuple[list[bytes], str]]:
    by_path = {f"/{number}.jpg": data for number, data in enumerate(files)}
    with served(by_path.get) as url:
        yield files, url


def _options(folder: Path, files_url: str) -> StackOptions:
    load_random(_TINY, folder)
    config = folder / "epd.toml"
    config.write_text(
        f'default_model = "tiny"\n[encoders.tiny]\nfamily = "dinov2"\npath = "{folder / _TINY.name}"\n'
        'dtype = "float32"\n[models.tiny]\nimage = "tiny"\n',
        encoding="utf-8",
    )
    overrides = {
        "EPD_URL_TTL": "3600",
        "EPD_FETCH_ALLOW_HOSTS": files_url.removeprefix("http://"),
        "EPD_TORCH_THREADS": "1",
    }
    return StackOptions(
        config=config, data_dir=folder / "data", downloads=4, decode_processes=1, overrides=overrides
    )


def _warmed(site: Site) -> tuple[str, ...]:
    """Encode every image, by URL and as data. Returns the embedding keys."""
    keys: dict[Kind, list[str]] = {}
    for kind in (Kind.URL, Kind.DATA):
        numbers = iter(range(len(site.files)))
        keys[kind] = []
        while chunk := list(itertools.islice(numbers, ITEMS)):
            items, _ = site.encode([site.item(kind, number) for number in chunk])
            keys[kind] += [item["embedding"]["key"] for item in items]
    if keys[Kind.URL] != keys[Kind.DATA]:
        raise RuntimeError("the same bytes have different keys")
    return tuple(keys[Kind.URL])
