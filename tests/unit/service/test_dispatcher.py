"""The dispatcher between a deliverer and the engine, with a small real encoder; leases and the mailbox."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from epd.contracts.errors import SettingsError
from epd.contracts.job import PartRecord, State
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.device import CpuDevice
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.slot import DropReason
from gpu_worker.service.dispatcher import Dispatcher
from gpu_worker.service.loading import shared_device
from gpu_worker.service.tickets import LeaseKeeper, TaskResult, TaskStatus, TicketLedger
from tasks.worker.hub_pool import HubMailbox
from tests.store_kit import Stores
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.service.encode_bench import EncodeBench, wait_for


class Deliverer:
    """A deliverer that keeps results, and releases each as an ack would."""

    def __init__(self) -> None:
        self.results: dict[str, TaskResult] = {}
        self.begun: set[str] = set()
        self.withdrawn: set[str] = set()
        self.dispatcher: Dispatcher | None = None

    def is_withdrawn(self, ticket_id: str) -> bool:
        return ticket_id in self.withdrawn

    def on_begun(self, ticket_ids: Sequence[str]) -> None:
        self.begun.update(ticket_ids)

    def on_results(self, results: Sequence[TaskResult]) -> None:
        assert self.dispatcher is not None
        self.results.update({one.ticket_id: one for one in results})
        self.dispatcher.release([one.ticket_id for one in results])

    def on_fatal(self, error: BaseException) -> None:
        raise AssertionError(error)


class Rig:
    def __init__(self, folder: Path, stores: Stores, encoder: Encoder) -> None:
        self.bench = EncodeBench(folder, stores, encoder.card.model_copy(update={"name": "eye"}))
        self.dispatcher = Dispatcher(
            context=self.bench.context, admission=self.bench.admission, writer=self.bench.writer
        )
        self.engine = Engine(
            {"eye": encoder}, budget=Budget(max_items=8, max_cost=10_000), device=CpuDevice(),
            observer=self.dispatcher, clock=lambda: self.bench.now,
        )  # fmt: skip
        self.deliverer = Deliverer()
        self.deliverer.dispatcher = self.dispatcher
        self.engine.start(30)

    def accept(self, ticket_id: str, document: Any) -> None:
        self.dispatcher.accept(ticket_id, document)

    def wait(self, count: int) -> dict[str, TaskResult]:
        wait_for(lambda: len(self.deliverer.results) >= count)
        return self.deliverer.results


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder("dinov2", tmp_path_factory.mktemp("eye"))


@pytest.fixture
def rig(tmp_path: Path, stores: Stores, eye: Encoder) -> Iterator[Rig]:
    rig = Rig(tmp_path, stores, eye)
    rig.dispatcher.open(rig.engine, rig.deliverer)
    yield rig
    rig.dispatcher.close(5)
    rig.engine.stop(10)


def test_messages_become_embeddings_results_and_freed_blobs(rig: Rig) -> None:
    tickets = {str(value): rig.bench.ticket(value, size=(30, 40)) for value in range(5)}
    for name, ticket in tickets.items():
        rig.accept(name, ticket.message.to_document())
    results = rig.wait(5)
    assert {one.status for one in results.values()} == {TaskStatus.ENCODED}
    assert rig.deliverer.begun == set(tickets)
    for ticket in tickets.values():
        assert rig.bench.state_of(ticket).state is State.DONE
        wait_for(lambda ticket=ticket: not rig.bench.has_blob(ticket))
    assert len(rig.dispatcher.ledger) == 0


def test_a_cancelled_and_a_revoked_message_run_no_forward(rig: Rig) -> None:
    cancelled, revoked = rig.bench.ticket(1), rig.bench.ticket(2)
    rig.bench.store.jobs.close(cancelled.message.job_id, PartRecord(state=State.CANCELLED))
    rig.deliverer.withdrawn.add("revoked")
    rig.accept("cancelled", cancelled.message.to_document())
    rig.accept("revoked", revoked.message.to_document())
    assert {one.status for one in rig.wait(2).values()} == {TaskStatus.CANCELLED}
    assert rig.deliverer.begun == set()
    assert rig.bench.state_of(revoked).state is State.CANCELLED
    assert rig.engine.counters.snapshot() == {"encode_dropped": 2}


@pytest.mark.parametrize("document", [None, {}, {"job_id": 3}, "text"])
def test_an_invalid_encode_message_fails_alone(rig: Rig, document: Any) -> None:
    rig.accept("bad", document)
    rig.accept("good", rig.bench.ticket(1, size=(30, 40)).message.to_document())
    results = rig.wait(2)
    assert results["bad"].status is TaskStatus.FAILED
    assert results["good"].status is TaskStatus.ENCODED


def test_a_message_that_was_acked_unrun_is_ended(rig: Rig) -> None:
    ticket = rig.bench.ticket(1)
    rig.dispatcher.drop(ticket.message.to_document(), DropReason.EXPIRED)
    assert rig.bench.state_of(ticket).state is State.EXPIRED
    assert rig.engine.counters.snapshot() == {"encode_expired": 1}
    assert not rig.bench.has_blob(ticket)


def test_leases_of_held_tickets_are_renewed(tmp_path: Path, stores: Stores) -> None:
    bench, ledger, renewed = EncodeBench(tmp_path, stores), TicketLedger(), threading.Event()
    ticket = bench.ticket(1)
    ledger.put(ticket)

    class Flights:
        def extend(self, keys: Collection[str]) -> None:
            if ticket.message.wanted.key in keys:
                renewed.set()

    keeper = LeaseKeeper(Flights(), ledger, lease=0.03)  # type: ignore[arg-type]
    keeper.start()
    assert renewed.wait(10)
    keeper.stop()


def test_the_mailbox_keeps_order_and_outlives_a_call_that_raises() -> None:
    seen: list[int] = []

    class Hub:
        woken = 0
        on_tick: ClassVar[set[Any]] = set()

        def call_soon(self, call: Any) -> None:
            self.woken += 1

    hub, mailbox = Hub(), HubMailbox()
    mailbox.post(lambda: seen.append(1))
    mailbox.connect(hub)
    mailbox.post(lambda: seen.append(1 // 0))
    mailbox.post(lambda: seen.append(2))
    mailbox.leave(lambda: seen.append(3))
    assert hub.woken == 3
    for tick in hub.on_tick:
        tick()
    assert seen == [1, 2, 3]


def test_encoders_on_two_devices_are_refused_by_name(eye: Encoder) -> None:
    class Elsewhere:
        card = eye.card.model_copy(update={"device": "cuda:0"})

    with pytest.raises(SettingsError, match=r"encoders\.far\.device=cuda:0"):
        shared_device({"near": eye, "far": Elsewhere()})  # type: ignore[dict-item]
