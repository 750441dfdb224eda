"""CPU work as pure functions: download, check, identify and decode media. No Redis, Celery or torch."""
