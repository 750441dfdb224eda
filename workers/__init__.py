"""CPU work as pure functions: fetch, check, sniff and decode media. No Redis, no Celery, no torch."""
