"""The REST API: it admits requests, answers from the cache, publishes work and hands out embeddings."""
