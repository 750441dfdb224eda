"""Names of the stage times that messages and records carry, all in seconds.

A ``*_QUEUE`` time runs from the publication of a message to the start of its work; the others are the work.
"""

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

#: All of them in the order of an item's life.
ALL = (FETCH_QUEUE, FETCH, DECODE_QUEUE, DECODE, ENCODE_QUEUE, STAGE, PREPROCESS, FORWARD, WRITE)
