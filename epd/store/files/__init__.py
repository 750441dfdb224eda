"""Files in shared memory and on disk: embeddings, blobs and the ledger. Knows no Redis."""
