"""Files in memory and on disk: embeddings, blobs, and the ledger of their bytes. Knows no Redis."""
