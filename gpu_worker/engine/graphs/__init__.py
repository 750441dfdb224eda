"""Captured forwards: buckets, static buffers, what captures and replays, and the runner that uses them."""
