"""The plain pipeline: downloads in threads, decoding in processes, pixels in files handed over by name.

It has no queue, no store, no retries and no cache. ``python -m bench.encoder.plain FOLDER`` reads lines of
JSON, lists of URLs, and answers each with the seconds that these images took.
"""

from __future__ import annotations

import itertools
import json
import mmap
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import requests
import simplejpeg

from bench.cli import folder_in_memory
from bench.encoder.site.costs import tree_cpu_seconds

_ROOT = Path(__file__).parents[2]
_THREADS = 32
_PROCESSES = 2

Decoded = tuple[str, tuple[int, ...]]

_numbers = itertools.count()
_threads = threading.local()


class Pipeline:
    """The pipeline inside its process. ``folder`` holds the pixels between decoding and use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._downloads = ThreadPoolExecutor(_THREADS)
        self._decodes = ProcessPoolExecutor(_PROCESSES, multiprocessing.get_context("spawn"))

    def run(self, urls: Sequence[str]) -> float:
        """Seconds from the first download to the last image's removal."""
        began = time.perf_counter()
        downloads = [self._downloads.submit(download, url) for url in urls]
        decodes: list[Future[Decoded]] = []
        for done in as_completed(downloads):
            decodes.append(self._decodes.submit(decode, done.result(), str(self._folder)))
        for decoded in as_completed(decodes):
            consume(*decoded.result())
        return time.perf_counter() - began


def download(url: str) -> bytes:
    """The body at a URL, over this thread's kept connection."""
    session: requests.Session | None = getattr(_threads, "session", None)
    if session is None:
        session = _threads.session = requests.Session()
    answer = session.get(url, timeout=30)
    answer.raise_for_status()
    return answer.content


def decode(jpeg: bytes, folder: str) -> Decoded:
    """Write the pixels of a JPEG into a new file. Returns its path and their shape."""
    pixels = simplejpeg.decode_jpeg(jpeg)
    path = f"{folder}/{os.getpid()}-{next(_numbers)}"
    pixels.tofile(path)
    return path, pixels.shape


def consume(path: str, shape: tuple[int, ...]) -> None:
    """Map the pixels, as an encoder would, and remove the file."""
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    os.unlink(path)
    np.frombuffer(mapping, np.uint8).reshape(shape)


def cpu_seconds_alone(urls: Sequence[str]) -> float:
    """CPU seconds that the download and the decoding of an image take, one after the other in this thread."""
    began = time.thread_time()
    for url in urls:
        simplejpeg.decode_jpeg(download(url))
    return (time.thread_time() - began) / len(urls)


class Plain:
    """The pipeline in a process of its own, with its CPU time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, urls: Sequence[str]) -> tuple[float, float]:
        """Images a second, and CPU seconds an image.

        Raises:
            RuntimeError: the pipeline failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = tree_cpu_seconds(self._process.pid)
        self._process.stdin.write(json.dumps(urls) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the plain pipeline failed")
        cpu = tree_cpu_seconds(self._process.pid) - before
        return len(urls) / float(answer), cpu / len(urls)


@contextmanager
def running_plain() -> Iterator[Plain]:
    """A pipeline that runs until the block ends."""
    with (
        folder_in_memory("epd-plain-") as folder,
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)], cwd=_ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process,
    ):  # fmt: skip
        try:
            yield Plain(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def main() -> None:
    """Answer each line of standard input."""
    pipeline = Pipeline(Path(sys.argv[1]))
    for line in sys.stdin:
        sys.stdout.write(f"{pipeline.run(json.loads(line))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
