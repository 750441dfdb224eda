"""One HTML page of a run, with its plots inside."""
