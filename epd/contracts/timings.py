"""The keys of every ``timings`` field, in the order of the stages of an item. Values are seconds."""

from __future__ import annotations

FETCH_QUEUE = "fetch_queue"
FETCH = "fetch"
DECODE_QUEUE = "decode_queue"
DECODE = "decode"
ENCODE_QUEUE = "encode_queue"
STAGE = "stage"
PREPROCESS = "preprocess"
FORWARD = "forward"
WRITE = "write"
