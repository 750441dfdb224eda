"""Items that kill the process which works on them: in a decode child, and in a GPU worker's batch."""

from __future__ import annotations

from pathlib import Path

from epd.identity import content_digest
from tests.chaos.checkpoints import SLOW_MODEL
from tests.chaos.corpus import Thing
from tests.chaos.play import Play, Scenario
from tests.chaos.world import Setup

_ROOT = Path(__file__).parents[3]
_MARKS = "marks"
#: Here the limit of deliveries is the product's own: three.
_SETUP = Setup(
    settings=(
        ("CHAOS_DEADLY_MARKS", f"{{world}}/{_MARKS}"),
        ("PYTHONPATH", f"{_ROOT / 'tests' / 'chaos' / 'deadly'}:{_ROOT}"),
    )
)
_MATES = 12


def run(play: Play) -> None:
    """Each poisoned item fails alone with ``worker_crashed``; whatever shared a batch with it is done."""
    play.facts["max_deliveries"] = 3
    for stage in ("decode", "encode"):
        things = play.world.corpus.take(_MATES)
        poison = play.dice.choice(things)
        _mark(play, stage, poison)
        play.load.add(things, SLOW_MODEL)
    play.require(play.load.finish(_SCENARIO_LIMIT), "not all is final")
    _check(play)


def _mark(play: Play, stage: str, thing: Thing) -> None:
    folder = play.world.folder / _MARKS
    folder.mkdir(exist_ok=True)
    (folder / f"{stage}-{content_digest(thing.data)}").touch()


def _check(play: Play) -> None:
    marked = {path.name.split("-")[1] for path in (play.world.folder / _MARKS).iterdir()}
    for order in play.load.ledger.orders:
        assert order.answer is not None
        for thing, item in zip(order.things, order.answer.items, strict=True):
            crashed = item.error is not None and item.error.code == "worker_crashed"
            if crashed != (content_digest(thing.data) in marked):
                play.require(False, f"{thing.name}: {item.state} {item.error}")


_SCENARIO_LIMIT = 180.0

SCENARIO = Scenario("poison", run, setup=_SETUP, allowed=frozenset({"worker_crashed"}))
