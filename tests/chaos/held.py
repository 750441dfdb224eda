"""What a worker process holds unacked at the broker, read from the transport's own keys."""

from __future__ import annotations

from epd.contracts.job import PartId
from epd.contracts.messages import DecodeMessage, EncodeMessage, FetchMessage
from tasks.transport import keys
from tasks.transport.liveness import parse_mark
from tasks.transport.poison import PoisonMessage
from tests.chaos.notices import Part
from tests.chaos.server import Server


def held_by(broker: Server, pid: int) -> set[Part]:
    """The parts whose messages the sessions of a process hold."""
    held: set[Part] = set()
    for session, descriptor in broker.client.hgetall(keys.SESSIONS).items():
        mark = parse_mark(descriptor.encode())
        if mark is not None and mark.pid == pid:
            for value in broker.client.hvals(keys.unacked(session)):
                held |= _parts_of(value)
    return held


def held_in_all(broker: Server) -> int:
    """Messages that any session holds, dead ones too."""
    return sum(broker.client.hlen(key) for key in broker.client.scan_iter(keys.unacked("*")))


def _parts_of(value: str) -> set[Part]:
    deliveries, lane, raw = value.split("\n", 2)
    message = PoisonMessage(queue=lane, deliveries=int(deliveries), raw=raw.encode())
    document = message.arguments()[0][0]
    match message.task:
        case "epd.fetch":
            chunk = FetchMessage.model_validate(document)
            return {(chunk.job_id, str(PartId(item.index, item.modality))) for item in chunk.items}
        case "epd.decode":
            decode = DecodeMessage.model_validate(document)
            return {(decode.job_id, str(PartId(decode.item.index, decode.item.modality)))}
        case "epd.encode":
            encode = EncodeMessage.model_validate(document)
            return {(encode.job_id, str(PartId(encode.item.index, encode.wanted.track)))}
    return set()
