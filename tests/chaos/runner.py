"""Runs scenarios one after the other; those of one setup share a stack, each with media of its own."""

from __future__ import annotations

import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from epd.client import Client
from tests.chaos.audit import Audit, audit
from tests.chaos.checkpoints import write_config
from tests.chaos.held import held_in_all
from tests.chaos.play import Play, Scenario
from tests.chaos.report import Line, median
from tests.chaos.world import Setup, World, wait_until

logger = logging.getLogger(__name__)

_CALM_LIMIT = 60.0

Tell = Callable[[Line], None]


def run_all(
    scenarios: Sequence[Scenario], *, seed: int, short: bool, tell: Tell, keep: Path | None = None
) -> bool:
    """Run them all and tell each line; True when every one is ok. Logs and data stay in ``keep``."""
    good = True
    with tempfile.TemporaryDirectory(prefix="epd-chaos-") as name, ExitStack() as open_world:
        folder = keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        config = write_config(folder)
        world: World | None = None
        for number, scenario in enumerate(_by_setup(scenarios)):
            if world is None or world.setup != scenario.setup:
                open_world.close()
                made = World(scenario.setup, config, folder / f"world{number}", seed)
                world = open_world.enter_context(made)
            line = perform(scenario, world, seed=seed, short=short)
            tell(line)
            good = good and line.ok
    return good


def _by_setup(scenarios: Sequence[Scenario]) -> Iterator[Scenario]:
    setups: list[Setup] = list(dict.fromkeys(scenario.setup for scenario in scenarios))
    for setup in setups:
        yield from (scenario for scenario in scenarios if scenario.setup == setup)


def perform(scenario: Scenario, world: World, *, seed: int, short: bool) -> Line:
    """Run one scenario on a stack that is up, wait for the end of all that it submitted, and audit it."""
    dice = random.Random(f"{seed} {scenario.name}")
    started = time.monotonic()
    load, watch = world.new_load(dice), world.new_watch()
    watch.start()
    load.start()
    try:
        with Client(world.stack.api_url, timeout=30) as client:
            play = Play(world, dice, short, load, watch, client)
            _storm(scenario, play)
            stormed = time.monotonic() - started
            play.require(
                load.finish(scenario.limit), f"not all is final {scenario.limit:.0f} s after the storm"
            )
            world.stack.wait_ready(_CALM_LIMIT)
            calm = wait_until(lambda: held_in_all(world.broker) == 0, _CALM_LIMIT)
            play.require(calm, "messages stay unacked")
            found = audit(client, load.ledger, world.store, watch, gone_is_lost=scenario.gone_is_lost)
            play.facts["storm_s"] = round(stormed, 1)
            return _line(scenario, play, found, seed, time.monotonic() - started)
    finally:
        load.close()
        watch.close()


def _storm(scenario: Scenario, play: Play) -> None:
    """Run the scenario; one that raises has failed, and its items are audited all the same."""
    try:
        scenario.run(play)
    except Exception as error:
        logger.exception("%s", scenario.name)
        play.broken.append(f"{type(error).__name__}: {error}")


def _line(scenario: Scenario, play: Play, found: Audit, seed: int, seconds: float) -> Line:
    ledger, failed = play.load.ledger, play.load.ledger.failed
    unexpected = sorted(set(failed) - scenario.allowed)
    why = [*found.lost, *found.duplicated, *found.blind, *play.broken, *play.load.not_accepted]
    why += [f"unexpected failure: {code}" for code in unexpected]
    return Line(
        scenario=scenario.name,
        seed=seed,
        server=_server_name(play.world),
        submitted=ledger.submitted,
        completed=ledger.completed,
        failed=dict(failed),
        lost=len(found.lost),
        duplicated=len(found.duplicated),
        recovery_s=median(play.recoveries),
        recoveries_s=[round(seconds, 2) for seconds in play.recoveries],
        seconds=round(seconds, 1),
        ok=not why,
        settings={name: value for name, value in scenario.setup.settings if name.startswith("EPD_")},
        facts={**play.facts, "gone": found.gone, "refused": dict(ledger.refused)},
        why=why,
    )


def _server_name(world: World) -> str:
    facts = world.broker.client.info("server")
    name = "valkey" if "valkey_version" in facts else "redis"
    return f"{name} {facts.get('valkey_version', facts['redis_version'])}"
