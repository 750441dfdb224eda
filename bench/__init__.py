"""Benchmarks: what the system can do, measured against what others do in the same run."""
