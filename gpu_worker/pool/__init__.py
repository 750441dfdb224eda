"""The Celery side of the worker: a pool that batches, and the process around it."""
