"""The two worker processes, each alone while it is measured."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ceiling.stock_app import QUEUE
from epd.lineage import die_with_parent
from epd.settings import child_environment

_ROOT = Path(__file__).parents[2]
_STOP_SECONDS = 15.0

GPU_WORKER = (sys.executable, "-m", "bench.ceiling.gpu_worker_process")
STOCK_WORKER = (
    sys.executable, "-m", "celery", "-A", "bench.ceiling.stock_app", "worker", "-P", "threads", "-c", "4",
    "-Q", QUEUE, "-E", "-l", "WARNING", "--without-gossip", "--without-mingle",
)  # fmt: skip


@contextmanager
def running(argv: Sequence[str], overrides: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with these settings, ended with the block; what it logged is shown where it died.

    Raises:
        RuntimeError: the worker died meanwhile.
    """
    environment = child_environment(
        {
            **overrides,
            "CELERY_CUSTOM_WORKER_POOL": "gpu_worker.pool:BatchPool",
            "PYTHONPATH": str(_ROOT),
            "OMP_NUM_THREADS": "1",
        }
    )
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, env=environment, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=die_with_parent,  # noqa: PLW1509  only calls prctl
        )  # fmt: skip
        try:
            yield process
        finally:
            died = process.poll() is not None
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if died:
                log.seek(0)
                raise RuntimeError(f"{argv[2]} died:\n{log.read().decode(errors='replace')[-4000:]}")
