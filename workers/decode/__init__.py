"""Decoding. The only code that parses media; it needs no network."""
