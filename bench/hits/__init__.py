"""What an API process answers from the cache: requests a second, and their latency."""
