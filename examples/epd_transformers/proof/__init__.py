"""The proof: small random checkpoints, transformers' own answer in one process, and both compared."""
