"""The Celery side: the application, the three tasks, publishing and the transport."""
