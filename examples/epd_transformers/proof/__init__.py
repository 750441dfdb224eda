"""Compares the three processes with transformers in one process, on small random checkpoints."""
