"""Time to first token: a server that does everything in one process against epd, Prefill and Decode."""
