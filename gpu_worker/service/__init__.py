"""Messages in, results out. Knows no Celery."""
