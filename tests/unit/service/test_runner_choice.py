"""Which runner the settings and the device give; and a service whose forwards are replayed on the twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from epd.config import Config, EncoderConfig, ModelConfig
from epd.contracts.errors import SettingsError
from epd.contracts.job import State
from epd.settings import Settings
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.forward import EagerRunner
from gpu_worker.engine.graphs.runner import GraphRunner
from gpu_worker.service.encode_service import EncodeService, open_service
from gpu_worker.service.loading import choose_runner, graph_plan
from tests.store_kit import Stores
from tests.unit.encoders.tiny_checkpoints import tiny_encoder
from tests.unit.engine.graphs.graph_kit import EvenBackend, Formless
from tests.unit.service.encode_bench import EncodeBench, wait_for
from tests.unit.service.test_dispatcher import Deliverer


def test_a_cpu_runs_eagerly_and_refuses_what_is_required() -> None:
    for word in ("auto", "off"):
        assert isinstance(choose_runner(Settings(cuda_graphs=word), "cpu"), EagerRunner)
    with pytest.raises(SettingsError, match="EPD_CUDA_GRAPHS=required: device cpu"):
        choose_runner(Settings(cuda_graphs="required"), "cpu")


def test_required_graphs_are_checked_before_any_model_is_loaded(tmp_path: Path, stores: Stores) -> None:
    """The checkpoint is not even there, and the device is what is named."""
    bench = EncodeBench(tmp_path, stores, cuda_graphs="required")
    entry = EncoderConfig(family="dinov2", path=tmp_path / "nowhere", device="cpu")
    config = Config(default_model="m", encoders={"eye": entry}, models={"m": ModelConfig(image="eye")})
    context = dataclasses.replace(bench.context, config=config)
    with pytest.raises(SettingsError, match="EPD_CUDA_GRAPHS=required: device cpu"):
        open_service(context, name="gpu@h")


def test_a_backend_is_used_unless_graphs_are_off() -> None:
    for word in ("auto", "required"):
        assert isinstance(choose_runner(Settings(cuda_graphs=word), "cpu", EvenBackend()), GraphRunner)
    assert isinstance(choose_runner(Settings(cuda_graphs="off"), "cpu", EvenBackend()), EagerRunner)


def test_the_plan_is_that_of_the_settings() -> None:
    plan = graph_plan(Settings(max_batch_items=5, max_batch_cost=3000, graph_memory_bytes=7, max_graphs=2))
    assert (plan.most_items, plan.most_rows, plan.required) == (5, 3000, False)
    assert (plan.bounds.memory, plan.bounds.graphs) == (7, 2)
    assert graph_plan(Settings(max_batch_cost=1 << 20)).most_rows == 16_384


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    torch.set_num_threads(1)
    return tiny_encoder("dinov2", tmp_path_factory.mktemp("eye"))


class Rig:
    def __init__(self, folder: Path, stores: Stores, encoder: Encoder, **settings: Any) -> None:
        self.bench = EncodeBench(folder, stores, card=encoder.card, **settings)
        self.service = EncodeService(
            context=self.bench.context, encoders={"eye": encoder}, name="gpu@h", backend=EvenBackend()
        )


@pytest.fixture
def rig(eye: Encoder, tmp_path: Path, stores: Stores) -> Iterator[Rig]:
    rig = Rig(tmp_path, stores, eye, max_batch_items=4, cuda_graphs="required")
    yield rig
    rig.service.stop(20)


def test_a_service_replays_and_its_heartbeat_reports_it(rig: Rig) -> None:
    deliverer = Deliverer()
    deliverer.dispatcher = rig.service.dispatcher
    rig.service.warm_up()
    rig.service.attach(deliverer)
    tickets = [rig.bench.ticket(value, size=(30, 40)) for value in (1, 2, 3)]
    for ticket in tickets:
        rig.service.dispatcher.accept(ticket.id, ticket.message.to_document())
    wait_for(lambda: len(deliverer.results) == 3)
    assert {rig.bench.state_of(ticket).state for ticket in tickets} == {State.DONE}
    counters = rig.service.heartbeat().counters
    own = {key.split("/")[0]: value for key, value in counters.items() if key.startswith("graph")}
    assert own["graphs"] == 4
    assert own["graph_memory_bytes"] > 0
    assert own["graph_hits"] == counters["encode_batches/eye"]
    assert own["graph_units"] == 3
    assert own["graph_misses"] == own["graph_declined"] == 0
    assert counters["staging_memory_bytes"] == 0
    assert rig.service.info()["graphs/tiny-dinov2"] == 4


def test_a_required_graph_that_is_missing_ends_the_start(
    eye: Encoder, tmp_path: Path, stores: Stores
) -> None:
    rig = Rig(tmp_path, stores, Formless(eye), cuda_graphs="required")
    with pytest.raises(SettingsError, match="graphs of tiny-dinov2 that are required are missing"):
        rig.service.warm_up()
    rig.service.abandon()


def test_graphs_that_are_off_are_not_reported(eye: Encoder, tmp_path: Path, stores: Stores) -> None:
    rig = Rig(tmp_path, stores, eye, cuda_graphs="off")
    rig.service.warm_up()
    assert not [key for key in rig.service.heartbeat().counters if key.startswith("graph")]
    rig.service.stop(20)
