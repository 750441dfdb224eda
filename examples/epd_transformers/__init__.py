"""Encode-Prefill-Decode in three processes: epd encodes, transformers prefills and decodes."""
