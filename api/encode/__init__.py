"""POST /v1/encode: one request from its body to its answer, out of the cache or as a job for the workers."""
