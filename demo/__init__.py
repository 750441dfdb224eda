"""``python -m demo``: encodes sample media with real weights on its own stack, and checks the results."""
