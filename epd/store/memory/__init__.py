"""The store in one process: the same promises, without a server. For tests and for trying things out."""
