"""Celery's settings, by Celery's own names. What differs between installations is in ``epd.settings``.

Queues: ``fetch`` and ``decode`` are consumed by ordinary workers, ``encode`` by ``python -m gpu_worker``. A
worker that is started without ``-Q`` takes fetch and decode only (see ``tasks.queues``).
"""

from __future__ import annotations

from kombu import Exchange, Queue

from epd.contracts.job import Priority
from epd.settings import settings
from tasks.queues import FETCH, MEDIA_POOL, PRIORITY_STEPS, QUEUES

_settings = settings()

# broker
broker_url = _settings.broker_url
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
broker_pool_limit = 8
broker_transport_options = {
    "priority_steps": sorted(PRIORITY_STEPS.values()),
    "max_deliveries": _settings.max_deliveries,
    "poison_hook": "tasks.poison:on_poison",
}

# queues: name, exchange and routing key are equal, or a message would reach all queues of one exchange
task_queues = [Queue(name, Exchange(name), routing_key=name) for name in QUEUES]
task_routes = {f"epd.{name}": {"queue": name, "routing_key": name} for name in QUEUES}
task_default_queue = task_default_exchange = task_default_routing_key = FETCH
task_default_priority = PRIORITY_STEPS[Priority.INTERACTIVE]
task_create_missing_queues = False

# messages
task_serializer = "json"
accept_content = ["json"]
task_publish_retry = True
task_publish_retry_policy = {
    "max_retries": 4,
    "interval_start": 0.0,
    "interval_step": 0.2,
    "interval_max": 1.0,
}

# results: the state of a job is in our store, so Celery stores none. Flower needs events only.
result_backend = None
task_ignore_result = True
task_store_errors_even_if_ignored = False

# at least once: a message is acked when its work is done, and given back when its child is killed
task_acks_late = True
task_reject_on_worker_lost = True
task_acks_on_failure = True
task_acks_on_timeout = True

# events, so that Flower and ``celery events`` see tasks; they see workers without them too
worker_send_task_events = _settings.task_events
task_send_sent_event = _settings.task_events
task_track_started = True

# workers: fetch and decode run in a pool of our own, encode in that of ``gpu_worker``
worker_pool = MEDIA_POOL
worker_concurrency = 32
imports = ("tasks.stages", "tasks.worker.lifecycle", "tasks.worker.events")
worker_prefetch_multiplier = 2
worker_cancel_long_running_tasks_on_connection_loss = False
worker_hijack_root_logger = True
worker_redirect_stdouts = False
worker_log_format = "%(asctime)s %(levelname)s %(processName)s %(name)s %(message)s"
worker_task_log_format = worker_log_format
