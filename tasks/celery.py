"""The Celery application, as ``celery -A tasks worker`` and ``celery -A tasks flower`` find it.

``celery -A tasks`` imports the package, finds no application in it, and then looks into this submodule.
Publishers (the API) import it too, so it names the task modules as strings only: nothing of ``workers`` is
loaded by them.
"""

from __future__ import annotations

from celery import Celery

from tasks.queues import connect_queue_rules
from tasks.transport.transport import register

register()
app = Celery("epd")
app.config_from_object("celeryconfig")
connect_queue_rules()
