"""Decoding: what parses media. Needs no network."""
