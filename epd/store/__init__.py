"""The store: keys, records and files that processes share."""
