"""The Celery pool that batches: the only door to Celery."""
