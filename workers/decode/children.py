"""Stub."""
from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from workers.decode.decode import audio_track, decode
from workers.limits import hold_nothing


class DecodeChildren:
    def __init__(self, count, *, tries=3):
        self.count=count; self._ex=ProcessPoolExecutor(count, multiprocessing.get_context("forkserver"))
    def start(self):
        self._ex.submit(len, "").result()
    def decode(self, path, *, modality, rules, options, limits, out, timeout):
        return self._ex.submit(decode, path, modality=modality, rules=rules, options=options, limits=replace(limits, hold=hold_nothing), out=out).result(timeout)
    def audio_track(self, path, *, limits, timeout):
        return self._ex.submit(audio_track, path, limits=replace(limits, hold=hold_nothing)).result(timeout)
    def close(self): self._ex.shutdown(wait=False)
