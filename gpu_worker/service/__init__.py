"""The encode service: messages in, results out. It does not know Celery."""
