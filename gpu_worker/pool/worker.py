"""The worker process: a warm encode service, and a Celery worker that feeds it until a signal ends it.

``gpu_worker.__main__`` imports this module late, since it loads torch and Celery.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Sequence

from celery.utils.nodenames import default_nodename, host_format

from gpu_worker.options import Options
from gpu_worker.pool.batch_pool import BatchPool
from gpu_worker.service.encode_service import EncodeService, open_service
from tasks.celery import app
from tasks.process import process_context
from tasks.queues import ENCODE
from tasks.worker.shutdown import COLD_STOP


def run_worker(options: Options) -> None:
    """Load the encoders and warm them up, then consume until a signal ends the worker.

    Raises:
        SettingsError, EncodeFailed, StoreUnavailable: as ``open_service``.
    """
    node = node_name(options.node)
    service = open_service(process_context(), name=node, device=options.device, share=options.share)
    consume(service, node, options.celery)


def node_name(template: str) -> str:
    """Fill in the placeholders of a Celery node name: ``gpu@%h`` gives ``gpu@host``."""
    return str(host_format(default_nodename(template)))


def consume(service: EncodeService, node: str, celery: Sequence[str] = ()) -> None:
    """Feed a warm service from the encode queue; ``celery`` are further options of ``celery worker``."""
    settings = process_context().settings
    BatchPool.service = service
    own = ["worker", "-P", "custom", "-Q", ENCODE, "-n", node, "-c", "1", "-l", settings.log_level]
    own += ["--prefetch-multiplier", str(settings.worker_prefetch), "--without-gossip", "--without-mingle"]
    # Encoders, torch and Celery live as long as the process: without this, each full collection walks them.
    gc.collect()
    gc.freeze()
    try:
        app.worker_main([*own, *celery])
    finally:
        if service.engine.is_running:
            # A cold shutdown left it running. A thread inside torch would abort the interpreter's own exit.
            logging.shutdown()
            os._exit(COLD_STOP)
