"""What a Celery worker process does besides its tasks: start, background threads, shutdown."""
