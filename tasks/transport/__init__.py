"""The kombu transport that loses no message when a process dies."""
