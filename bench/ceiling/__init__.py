"""How many tasks a second the GPU worker itself can drain, against a stock Celery worker."""
