"""Metrics, traces, logs and heartbeats: what a process tells of itself."""
