"""What a Celery worker process does beside its tasks: start, background threads, shutdown."""
