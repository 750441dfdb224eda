"""The worker process: an encode service that is warm, and a Celery worker that feeds it until a signal."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Sequence

from celery.utils.nodenames import default_nodename, host_format

from gpu_worker.options import Options
from gpu_worker.pool.batch_pool import COLD_STOP, BatchPool
from gpu_worker.pool.celery_ext import EventBatches
from gpu_worker.service.service import EncodeService, open_service
from tasks.celery import app
from tasks.process import process_context
from tasks.queues import ENCODE


def run_worker(options: Options) -> None:
    """Load the encoders and warm them up, then consume until a signal ends the worker.

    Raises:
        SettingsError, EncodeFailed, StoreUnavailable: as ``open_service``.
    """
    node = node_name(options.node)
    service = open_service(process_context(), name=node, device=options.device, share=options.share)
    consume(service, node, options.celery)


def node_name(wanted: str) -> str:
    """A Celery node name with its placeholders filled in, as ``gpu@host``."""
    return str(host_format(default_nodename(wanted)))


def consume(service: EncodeService, node: str, celery: Sequence[str] = ()) -> None:
    """Feed a warm service from the encode queue; ``celery`` are further options of ``celery worker``."""
    settings = process_context().settings
    BatchPool.service = service
    own = ["worker", "-P", "custom", "-Q", ENCODE, "-n", node, "-c", "1", "-l", settings.log_level]
    own += ["--prefetch-multiplier", str(settings.worker_prefetch), "--without-gossip", "--without-mingle"]
    app.steps["consumer"].add(EventBatches)
    # Encoders, torch and Celery stay: without this each full collection walks all of them.
    gc.collect()
    gc.freeze()
    try:
        app.worker_main([*own, *celery])
    finally:
        if service.engine.is_running:
            # Left behind by a cold shutdown: a thread inside torch aborts the interpreter's own ending.
            logging.shutdown()
            os._exit(COLD_STOP)
