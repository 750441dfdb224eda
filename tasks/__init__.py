"""The Celery surface: the application, the three tasks, publishing and the transport."""
