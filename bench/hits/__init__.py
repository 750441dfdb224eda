"""What an API process answers from the cache alone: requests a second, and how long each takes."""
