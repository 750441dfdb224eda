"""The Celery application that ``celery -A tasks worker`` and ``celery -A tasks flower`` find.

``celery -A tasks`` imports the package, finds no application in it, and then looks into this submodule.
Publishers such as the API import it too. ``celeryconfig`` names the task modules as strings, so publishers
load nothing of ``workers``.
"""

from __future__ import annotations

from celery import Celery

from tasks.queues import connect_queue_rules
from tasks.transport.kombu import register

register()
app = Celery("epd")
app.config_from_object("celeryconfig")
connect_queue_rules()
