"""Embeddings: rows, slices, formats and the cache's listing."""
