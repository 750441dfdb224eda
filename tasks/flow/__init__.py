"""The flow of one item through fetch and decode, over the store's protocols; knows no Celery."""
