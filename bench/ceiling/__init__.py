"""How many tasks a second the GPU worker itself can drain, beside a stock Celery worker."""
