"""The asynchronous client: the same methods as ``Client``, to be awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from epd.client import calls
from epd.client.calls import Answer, Call, Unreachable
from epd.client.payloads import NO_SLICES, Form, ItemLike, Prepared, prepare, read_embedding, read_slices
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

_UPLOAD_CHUNK = 1 << 18


class AsyncClient:
    """A client for one API server; see ``Client`` for arguments, results and errors."""

    def __init__(self, base_url: str = "http://127.0.0.1:8000", *, timeout: float = 60.0) -> None:
        limits = httpx.Limits(max_connections=512, max_keepalive_connections=64)
        url = calls.checked_url(base_url)
        self._timeout = timeout
        self._http = httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False, limits=limits)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def encode(
        self,
        items: Iterable[ItemLike],
        *,
        type: str | None = None,
        model: str | None = None,
        priority: str | None = None,
        deadline: float | None = None,
        wait: float = 600.0,
    ) -> JobAnswer:
        """Encode items and wait for all of them; see ``Client.encode``."""
        end = time.monotonic() + wait
        first = min(wait, calls.ROUND_WAIT)
        job = await self._start(items, type, model=model, priority=priority, deadline=deadline, wait=first)
        if job.state in FINAL_STATES:
            return job
        return await self.wait(job.job_id, max(0.0, end - time.monotonic()))

    async def submit(
        self,
        items: Iterable[ItemLike],
        *,
        type: str | None = None,
        model: str | None = None,
        priority: str | None = None,
        deadline: float | None = None,
    ) -> JobAnswer:
        """Start a job and return at once. Local files are uploaded first."""
        return await self._start(items, type, model=model, priority=priority, deadline=deadline, wait=0.0)

    async def _start(
        self,
        items: Iterable[ItemLike],
        type_: str | None,
        *,
        model: str | None,
        priority: str | None,
        deadline: float | None,
        wait: float,
    ) -> JobAnswer:
        bodies = [await self._uploaded(prepare(item, type_)) for item in items]
        call = calls.start_job(bodies, model=model, wait=wait, priority=priority, deadline=deadline)
        return await self._send(call, wait=wait)

    async def _uploaded(self, item: Prepared) -> dict[str, Any]:
        if item.upload is None:
            return item.body
        return {**item.body, "media_id": (await self.upload(item.upload)).media_id}

    async def wait(self, job_id: str, timeout: float = 600.0) -> JobAnswer:
        """Poll a job until it is final; raises ``DeadlineExceeded`` after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        polls = 0
        while (job := await self.job(job_id)).state not in FINAL_STATES:
            if time.monotonic() >= end:
                raise DeadlineExceeded(f"job {job_id} is still {job.state} after {timeout:.0f} s")
            await asyncio.sleep(calls.poll_delay(polls))
            polls += 1
        return job

    async def job(self, job_id: str) -> JobAnswer:
        """The current state of a job."""
        return await self._send(calls.get_job(job_id))

    async def cancel(self, job_id: str) -> JobAnswer:
        """Cancel all parts of a job that are not final, and return the job."""
        return await self._send(calls.cancel_job(job_id))

    async def events(self, job_id: str) -> AsyncIterator[EventAnswer]:
        """Yield the state changes of a job's items as they happen, until the job is final."""
        try:
            async with self._http.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
                if not answer.is_success:
                    calls.raise_for_problem(_whole(answer, await answer.aread()))
                async for line in answer.aiter_lines():
                    event = calls.read_event_line(line)
                    if event is not None:
                        yield event
        except httpx.RequestError as error:
            raise self._unreachable(error) from error

    async def embedding(
        self, key: str, start: int | None = None, stop: int | None = None, *, form: Form = "numpy"
    ) -> Any:
        """An embedding [tokens, hidden], or its rows [start, stop).

        ``form`` chooses a numpy array, a torch tensor or the raw safetensors bytes.
        """
        return read_embedding(await self._send(calls.get_embedding(key, start, stop)), form)

    async def slices(self, slices: Sequence[Slice], *, form: Form = "numpy") -> Any:
        """Rows of several embeddings in one request: a list of [rows, hidden], in the order of ``slices``.

        All or nothing: raises ``NotFound`` naming each key that is not in the cache.
        """
        body = await self._send(calls.get_slices(slices)) if slices else NO_SLICES
        return read_slices(body, len(slices), form)

    async def cached(
        self,
        *,
        encoder: str | None = None,
        modality: str | None = None,
        tier: str | None = None,
        page: int = 500,
    ) -> AsyncIterator[CachedAnswer]:
        """The entries of the cache; see ``Client.cached``."""
        params = {"encoder": encoder, "modality": modality, "tier": tier, "limit": str(page), "cursor": None}
        while True:
            answer = await self._send(calls.list_embeddings(params))
            for each in answer.embeddings:
                yield each
            if answer.cursor is None:
                return
            params["cursor"] = answer.cursor

    async def forget(self, key: str) -> None:
        """Remove one embedding from the cache; see ``Client.forget``."""
        await self._send(calls.delete_embedding(key))

    async def clear(self, *, encoder: str | None = None, weights_digest: str | None = None) -> int:
        """Remove the embeddings of an encoder; see ``Client.clear``."""
        params = {"encoder": encoder, "weights_digest": weights_digest, "cursor": None}
        params["all"] = "true" if encoder is None else None
        removed = 0
        while True:
            answer = await self._send(calls.delete_embeddings(params))
            removed += answer.removed
            if answer.cursor is None:
                return removed
            params["cursor"] = answer.cursor

    async def metadata(self, key: str) -> Metadata:
        """The Decode-side metadata of an embedding."""
        return await self._send(calls.get_metadata(key))

    async def put_handoff(self, request_id: str, handoff: HandoffRequest) -> HandoffReceipt:
        """For Prefill: report where each embedding is in the prompt. The same put may be repeated.

        Raises:
            HandoffConflict: a different handoff with this id exists.
            NotFound: neither the server nor the item has metadata for a key; each such key is named.
        """
        return await self._send(calls.put_handoff(request_id, handoff))

    async def handoff(self, request_id: str, wait: float = 30.0) -> Handoff:
        """For Decode: the placements from Prefill with the metadata of each item. It can be read repeatedly.

        Raises:
            NotFound: no handoff arrived within ``wait`` seconds, or it has expired.
        """
        return await self._send(calls.get_handoff(request_id, wait), wait=wait)

    async def delete_handoff(self, request_id: str) -> None:
        """Delete a handoff before it expires; it need not exist."""
        await self._send(calls.delete_handoff(request_id))

    async def upload(self, path: str | Path) -> MediaAnswer:
        """Upload a file as a stream; its media id is the sha256 of its bytes."""
        for tries in range(len(calls.RETRY_DELAYS) + 1):
            answer = await self._request("POST", "/v1/media", content=_chunks(Path(path)))
            delay = calls.retry_delay(answer, tries)
            if delay is None:
                break
            await asyncio.sleep(delay)
        calls.raise_for_problem(answer)
        return calls.read_media(answer)

    async def models(self) -> ModelsAnswer:
        """The server's models and encoders."""
        return await self._send(calls.get_models())

    async def status(self) -> StatusAnswer:
        """Workers, queue depths and the size of the cache."""
        return await self._send(calls.get_status())

    async def _send(self, call: Call[T], wait: float = 0.0) -> T:
        timeout = httpx.Timeout(self._timeout, read=self._timeout + wait)
        for tries in range(len(calls.RETRY_DELAYS) + 1):
            answer = await self._request(
                call.method, call.target, content=call.body, headers=call.headers, timeout=timeout
            )
            delay = calls.retry_delay(answer, tries)
            if delay is None:
                break
            await asyncio.sleep(delay)
        calls.raise_for_problem(answer)
        return call.read(answer)

    async def _request(self, method: str, target: str, **options: Any) -> Answer:
        try:
            answer = await self._http.request(method, target, **options)
            return _whole(answer, answer.content)
        except httpx.RequestError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._http.base_url}: {error or type(error).__name__}")


def _whole(answer: httpx.Response, content: bytes) -> Answer:
    return Answer(answer.status_code, answer.headers, content)


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _UPLOAD_CHUNK):
            yield chunk
