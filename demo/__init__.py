"""``python -m demo``: media in, embeddings out, on real weights and a stack of its own."""
