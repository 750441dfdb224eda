"""Where one process does the work of its items: threads for downloads, and for decodes if it decodes too."""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from epd.contracts.messages import DecodeMessage
from epd.telemetry.tracing import span
from tasks.flow.context import Context, Tally
from tasks.flow.decode import decode_item
from tasks.flow.fair_executor import Bounds, FairExecutor, Turn
from workers.decode.children import DecodeChildren

#: The shares of the downloads that one job and one host may fill.
JOB_SHARE, HOST_SHARE = 0.25, 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """The threads of this process. Without ``decodes``, items go to the workers that consume ``decode``."""

    context: Context
    downloads: FairExecutor
    decodes: FairExecutor | None = None

    def pass_on(self, message: DecodeMessage) -> Future[Tally] | None:
        """Have an item decoded: here, then its future ends with what to count, or by another worker.

        Raises:
            StoreUnavailable: the broker did not take the message.
        """
        if self.decodes is None:
            self.context.publisher.decode([message])
            return None
        return self.decode(message, is_claimed=True)

    def decode(self, message: DecodeMessage, *, is_claimed: bool = False) -> Future[Tally]:
        """Decode an item here, when it is its turn. Its flights are kept from now on.

        The future raises ``StoreUnavailable`` when the item has to be run again.
        """
        assert self.decodes is not None
        keys = [wanted.key for wanted in (message.main, message.audio) if wanted is not None]
        leases = self.context.leases
        leases.add(keys)
        run = partial(_decode_traced, self.context, message, is_claimed)
        future = self.decodes.submit(Turn(message.priority, message.job_id), run)
        future.add_done_callback(lambda _: leases.remove(keys))
        return future

    def close(self) -> None:
        """Cancel what has not started."""
        self.downloads.close()
        if self.decodes is not None:
            self.decodes.close()

    def end(self) -> None:
        """End the children, once nothing runs any more."""
        if self.context.decoder is not None:
            self.context.decoder.close()


def start_work(context: Context, *, decodes: bool) -> Work:
    """Make the threads of a process, and the decoding children of one that decodes."""
    own = context.settings
    most = own.fetch_downloads
    bounds = Bounds(per_job=max(1, int(most * JOB_SHARE)), per_host=max(1, int(most * HOST_SHARE)))
    downloads = FairExecutor("download", most, bounds)
    if not decodes:
        return Work(context, downloads)
    children = DecodeChildren(own.decode_processes or os.cpu_count() or 1, tries=own.max_deliveries)
    children.start()
    # One thread more than children, so that none of them waits while results are published.
    threads = FairExecutor("decode", children.count + 1)
    return Work(replace(context, decoder=children), downloads, threads)


def _decode_traced(context: Context, message: DecodeMessage, is_claimed: bool) -> Tally:
    with span("epd.decode", message.trace, job_id=message.job_id, item=message.item.index) as carrier:
        traced = message.model_copy(update={"trace": carrier})
        return decode_item(context, traced, is_claimed=is_claimed)
