"""The engine: batches from queued slots, and the one thread that owns the device. No Celery, no Redis."""
