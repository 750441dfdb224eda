"""The store: keys, records and files that processes share. Protocols, a Redis form and an in-memory form."""
