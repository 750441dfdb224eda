"""The requests: the same ones, in the same order, for both sides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from enum import StrEnum

from bench.ttft.load import Request

#: Photos that the requests choose from; of the distinct mix each is another file every time.
PHOTOS = 12
MOST_IMAGES = 8


class Mix(StrEnum):
    """Which images come."""

    REPEATED = "repeated"  #: files that have come before
    DISTINCT = "distinct"  #: files that never came before


class Requests:
    """Makes requests of 1 to 8 images by URL."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._numbers = itertools.count()

    def warm_up(self) -> list[Request]:
        """Every repeated file at least once."""
        known = [self._url(photo, Mix.REPEATED) for photo in range(PHOTOS)]
        return [self._request("warm-up", known[:MOST_IMAGES]), self._request("warm-up", known[-MOST_IMAGES:])]

    def of(self, mix: Mix, count: int, seed: int) -> list[Request]:
        """So many requests; ids, numbers of images and photos depend on the arguments alone."""
        chance = random.Random(f"{mix}{seed}")
        sizes = itertools.islice(_sizes(chance), count)
        return [
            self._request(f"{mix}-{seed}-{number}", list(self._urls(mix, chance, size, f"{seed}x{number}")))
            for number, size in enumerate(sizes)
        ]

    def _urls(self, mix: Mix, chance: random.Random, size: int, name: str) -> Iterator[str]:
        for photo in chance.sample(range(PHOTOS), size):
            yield self._url(photo, mix if mix is Mix.REPEATED else f"{mix}{name}")

    def _url(self, photo: int, name: str) -> str:
        return f"{self._site}/{photo}/{name}.jpg"

    def _request(self, name: str, urls: list[str]) -> Request:
        images = [{"type": "image", "url": url} for url in urls]
        parts = ["Look at these. ", *images, " What do they have in common? "]
        return {"request_id": f"{name}-{next(self._numbers)}", "model": "qwen", "parts": parts, "limit": 1}


def _sizes(chance: random.Random) -> Iterator[int]:
    """Numbers of images: each one equally often, in an order by chance, so that all loads weigh the same."""
    while True:
        yield from chance.sample(range(1, MOST_IMAGES + 1), MOST_IMAGES)
