"""The flow of one item through fetch and decode. Knows the store, but neither Celery nor Redis."""
