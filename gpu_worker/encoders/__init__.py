"""Encoder families behind one protocol, and how their weights are read."""
