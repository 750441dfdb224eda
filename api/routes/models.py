"""``GET /v1/models``."""

from __future__ import annotations

from fastapi import APIRouter

from api.docs import problems
from api.memory_figures import encoder_figure
from api.readiness import ready_encoders
from api.services import Served, Services
from epd.contracts.answers import EncoderAnswer, ModelAnswer, ModelsAnswer
from epd.telemetry.counters import Count

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=problems(503))
async def get_models(services: Served) -> ModelsAnswer:
    """The models and encoders of the config; ``ready``: a live GPU worker serves the encoder."""
    return await services.call(_models, services)


def _models(services: Services) -> ModelsAnswer:
    config = services.config
    names = list(config.encoders)
    cards = services.store.cards.get(names)
    beats = services.store.heartbeats.alive()
    ready = ready_encoders(beats)
    return ModelsAnswer(
        models=tuple(
            ModelAnswer(name=name, default=name == config.default_model, **model.model_dump())
            for name, model in config.models.items()
        ),
        encoders=tuple(
            EncoderAnswer(
                name=name,
                family=config.encoders[name].family,
                ready=name in ready,
                card=card,
                memory_bytes=encoder_figure(beats, Count.ENCODER_MEMORY, name),
                graphs=encoder_figure(beats, Count.GRAPHS, name),
                graph_bytes=encoder_figure(beats, Count.GRAPH_MEMORY, name),
            )
            for name, card in zip(names, cards, strict=True)
        ),
    )
