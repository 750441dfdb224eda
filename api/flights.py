"""A job that ends early leaves its flights at once, so that nobody else waits behind messages of a dead job.

Workers do the same when a message of the job comes up; that may be a long queue later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from api.services import Services
from epd.contracts.errors import CallerFault, EncoderNotReady, EpdError
from epd.contracts.job import FINAL_STATES, JobView, PartId, PartRecord
from epd.contracts.messages import FetchMessage
from epd.identity import download_key
from epd.lookup import cards_of, last_digest, needs_of

logger = logging.getLogger(__name__)


def leave_flights(services: Services, before: JobView) -> None:
    """Take the open parts of a job, as it stood before it was closed, out of the flights that they are in.

    Where others wait on a flight that was the job's own, one of them starts it anew. Only items whose digest
    is known are looked at. Trouble is logged: then the job's messages, or the flights' leases, do it later.
    """
    try:
        heirs = [
            FetchMessage.from_json(text).model_copy(update={"enqueued_at": time.time()})
            for key, part in _flights_of(services, before)
            if (text := services.store.flights.withdraw(key, before.record.job_id, part)) is not None
        ]
        if heirs:
            services.publish(heirs)
    except (EpdError, ValueError) as error:
        logger.warning("job %s leaves its flights later: %s", before.record.job_id, error)


def _flights_of(services: Services, before: JobView) -> Iterator[tuple[str, PartId]]:
    """Keys and parts of what was open: of each URL's download, and of embeddings whose digest is known."""
    _, model = services.config.model(before.record.model)
    cards = cards_of(model, services.store.cards)
    for item in before.record.items:
        if all(part.state in FINAL_STATES for _, part in before.parts_of(item.index)):
            continue
        if item.source.url is not None:
            yield download_key(item.source.url, item.modality), PartId(item.index, item.modality)
        digest = last_digest(item, services.store.sources)
        if digest is None:
            continue
        try:
            needs = needs_of(item, digest, model=model, cards=cards)
        except (CallerFault, EncoderNotReady):
            continue
        for wanted in filter(None, (needs.main, needs.audio)):
            part = PartId(item.index, wanted.track)
            if not _is_final(before, part):
                yield wanted.key, part


def _is_final(view: JobView, part: PartId) -> bool:
    """Whether a part had ended; one that is not known yet (a video's sound) had not."""
    return view.parts.get(str(part), PartRecord()).state in FINAL_STATES
