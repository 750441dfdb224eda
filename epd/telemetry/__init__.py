"""Metrics, traces, logs and heartbeats: what a process reports about itself."""
