"""The synchronous client. All its requests and answers come from ``calls``; see there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from epd.client import calls
from epd.client.calls import Call
from epd.client.payloads import NO_SLICES, Form, ItemLike, Prepared, prepare, read_embedding, read_slices
from epd.client.transport import Transport
from epd.contracts.embedding import Metadata
from epd.contracts.errors import DeadlineExceeded
from epd.contracts.handoff import Handoff, HandoffReceipt, HandoffRequest, Slice
from epd.contracts.job import FINAL_STATES
from epd.contracts.responses import (
    CachedAnswer,
    EventAnswer,
    JobAnswer,
    MediaAnswer,
    ModelsAnswer,
    StatusAnswer,
)

T = TypeVar("T")


class Client:
    """A client for one API server, for any number of threads.

    ``timeout`` bounds each request in seconds, not counting a wait that the request itself asks for. Every
    method raises ``Unreachable`` when no server answers, and the class from ``epd.contracts.errors`` that
    belongs to the error code of an answer.
    """

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, timeout: float = 60.0) -> None:
        self._transport = Transport(base_url, timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def encode(
        self,
        items: Iterable[ItemLike],
        *,
        type: str | None = None,
        model: str | None = None,
        priority: str | None = None,
        deadline: float | None = None,
        wait: float = 600.0,
    ) -> JobAnswer:
        """Encode items and wait for all of them; local files are uploaded first.

        Args:
            items: paths, URLs, or mappings as ``POST /v1/encode`` takes them, with ``path`` or bytes in
                ``data`` allowed.
            type: the media type of items whose name does not show it.
            model: a model of the server; the default is the server's own.
            priority: ``interactive`` or ``bulk``.
            deadline: seconds after which the server gives up what is not done.
            wait: seconds to wait for the job.

        Raises:
            DeadlineExceeded: not all items were final within ``wait`` seconds; the job continues.
        """
        end = time.monotonic() + wait
        first = min(wait, calls.ROUND_WAIT)
        job = self._start(items, type, model=model, priority=priority, deadline=deadline, wait=first)
        if job.state in FINAL_STATES:
            return job
        return self.wait(job.job_id, max(0.0, end - time.monotonic()))

    def submit(
        self,
        items: Iterable[ItemLike],
        *,
        type: str | None = None,
        model: str | None = None,
        priority: str | None = None,
        deadline: float | None = None,
    ) -> JobAnswer:
        """Start a job and return at once. Local files are uploaded first."""
        return self._start(items, type, model=model, priority=priority, deadline=deadline, wait=0.0)

    def _start(
        self,
        items: Iterable[ItemLike],
        type_: str | None,
        *,
        model: str | None,
        priority: str | None,
        deadline: float | None,
        wait: float,
    ) -> JobAnswer:
        bodies = [self._uploaded(prepare(item, type_)) for item in items]
        call = calls.start_job(bodies, model=model, wait=wait, priority=priority, deadline=deadline)
        return self._send(call, wait=wait)

    def _uploaded(self, item: Prepared) -> dict[str, Any]:
        if item.upload is None:
            return item.body
        return {**item.body, "media_id": self.upload(item.upload).media_id}

    def wait(self, job_id: str, timeout: float = 600.0) -> JobAnswer:
        """Poll a job until it is final; raises ``DeadlineExceeded`` after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        polls = 0
        while (job := self.job(job_id)).state not in FINAL_STATES:
            if time.monotonic() >= end:
                raise DeadlineExceeded(f"job {job_id} is still {job.state} after {timeout:.0f} s")
            time.sleep(calls.poll_delay(polls))
            polls += 1
        return job

    def job(self, job_id: str) -> JobAnswer:
        """The current state of a job."""
        return self._send(calls.get_job(job_id))

    def cancel(self, job_id: str) -> JobAnswer:
        """Cancel all parts of a job that are not final, and return the job."""
        return self._send(calls.cancel_job(job_id))

    def events(self, job_id: str) -> Iterator[EventAnswer]:
        """Yield the state changes of a job's items as they happen, until the job is final."""
        yield from calls.read_events(self._transport.lines(f"/v1/jobs/{job_id}/events"))

    def embedding(
        self, key: str, start: int | None = None, stop: int | None = None, *, form: Form = "numpy"
    ) -> Any:
        """An embedding [tokens, hidden], or its rows [start, stop).

        ``form`` chooses a numpy array, a torch tensor or the raw safetensors bytes.
        """
        return read_embedding(self._send(calls.get_embedding(key, start, stop)), form)

    def slices(self, slices: Sequence[Slice], *, form: Form = "numpy") -> Any:
        """Rows of several embeddings in one request: a list of [rows, hidden], in the order of ``slices``.

        All or nothing: raises ``NotFound`` naming each key that is not in the cache.
        """
        body = self._send(calls.get_slices(slices)) if slices else NO_SLICES
        return read_slices(body, len(slices), form)

    def cached(
        self,
        *,
        encoder: str | None = None,
        modality: str | None = None,
        tier: str | None = None,
        page: int = 500,
    ) -> Iterator[CachedAnswer]:
        """Yield the entries of the cache in no order, optionally of one encoder, type or tier only.

        ``page`` is the number of entries per request.
        """
        params = {"encoder": encoder, "modality": modality, "tier": tier, "limit": str(page), "cursor": None}
        while True:
            answer = self._send(calls.list_embeddings(params))
            yield from answer.embeddings
            if answer.cursor is None:
                return
            params["cursor"] = answer.cursor

    def forget(self, key: str) -> None:
        """Remove one embedding from the cache; raises ``NotFound`` when it is not there."""
        self._send(calls.delete_embedding(key))

    def clear(self, *, encoder: str | None = None, weights_digest: str | None = None) -> int:
        """Remove the embeddings of an encoder, of one revision of it, or all; return how many there were.

        The first digits of ``weights_digest`` are enough.
        """
        params = {"encoder": encoder, "weights_digest": weights_digest, "cursor": None}
        params["all"] = "true" if encoder is None else None
        removed = 0
        while True:
            answer = self._send(calls.delete_embeddings(params))
            removed += answer.removed
            if answer.cursor is None:
                return removed
            params["cursor"] = answer.cursor

    def metadata(self, key: str) -> Metadata:
        """The Decode-side metadata of an embedding."""
        return self._send(calls.get_metadata(key))

    def put_handoff(self, request_id: str, handoff: HandoffRequest) -> HandoffReceipt:
        """For Prefill: report where each embedding is in the prompt. The same put may be repeated.

        Raises:
            HandoffConflict: a different handoff with this id exists.
            NotFound: neither the server nor the item has metadata for a key; each such key is named.
        """
        return self._send(calls.put_handoff(request_id, handoff))

    def handoff(self, request_id: str, wait: float = 30.0) -> Handoff:
        """For Decode: the placements from Prefill with the metadata of each item. It can be read repeatedly.

        Raises:
            NotFound: no handoff arrived within ``wait`` seconds, or it has expired.
        """
        return self._send(calls.get_handoff(request_id, wait), wait=wait)

    def delete_handoff(self, request_id: str) -> None:
        """Delete a handoff before it expires; it need not exist."""
        self._send(calls.delete_handoff(request_id))

    def upload(self, path: str | Path) -> MediaAnswer:
        """Upload a file as a stream; its media id is the sha256 of its bytes."""
        # The file is reopened for each try: a stream cannot be sent twice.
        for tries in range(len(calls.RETRY_DELAYS) + 1):
            with Path(path).open("rb") as file:
                length = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
                answer = self._transport.send("POST", "/v1/media", body=file, headers=length)
            delay = calls.retry_delay(answer, tries)
            if delay is None:
                break
            time.sleep(delay)
        calls.raise_for_problem(answer)
        return calls.read_media(answer)

    def models(self) -> ModelsAnswer:
        """The server's models and encoders."""
        return self._send(calls.get_models())

    def status(self) -> StatusAnswer:
        """Workers, queue depths and the size of the cache."""
        return self._send(calls.get_status())

    def _send(self, call: Call[T], wait: float = 0.0) -> T:
        body, headers = call.body, call.headers
        for tries in range(len(calls.RETRY_DELAYS) + 1):
            answer = self._transport.send(call.method, call.target, body=body, headers=headers, wait=wait)
            delay = calls.retry_delay(answer, tries)
            if delay is None:
                break
            time.sleep(delay)
        calls.raise_for_problem(answer)
        return call.read(answer)
