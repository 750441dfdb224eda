"""Running a staged batch so that one bad item fails alone, and the runner that does a single forward.

A batch that raises, or that does not fit into memory, is run again in halves, down to single items, which
fail with their own error. An item that costs more than a whole batch is run in parts, so that its memory is
bounded too. Only an error that leaves the device unusable ends the run.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from epd.contracts.errors import EncodeFailed, EpdError
from gpu_worker.encoders.base import Encoder, Inputs, ItemPlan
from gpu_worker.engine.batcher import split
from gpu_worker.engine.device import Device, DeviceLost, Stamp, is_device_lost, is_out_of_memory
from gpu_worker.engine.slot import Failed, Settled
from gpu_worker.engine.staging import RanItem, StagedItem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rows:
    """The output of one batch: packed rows on the device, their items in order, and three stamps.

    For an item that ran in parts, ``preprocessed`` is the stamp of its first part. The raw media are not
    held: the next batch needs their memory while the rows are copied out.
    """

    items: tuple[RanItem, ...]
    packed: Tensor
    begun: Stamp
    preprocessed: Stamp
    done: Stamp


class ForwardPass:
    """Preprocess and forward of batches on the calling thread, which owns the device."""

    def __init__(self, device: Device, runner: Runner, max_cost: int) -> None:
        self._device = device
        self._runner = runner
        self._max_cost = max_cost

    def run(self, encoder: Encoder, batch: Sequence[StagedItem]) -> Iterator[Rows | Settled]:
        """Yield the rows of each part of the batch that ran, and a failure for each item that cannot run.

        Raises:
            DeviceLost: the device's context is broken; nothing more can run in this process.
        """
        pending = deque([tuple(batch)] if batch else [])
        while pending:
            items = pending.popleft()
            # An error becomes a value before the next try: its frames would hold the failed batch's tensors.
            outcome = self._try(encoder, items)
            if isinstance(outcome, Rows):
                yield outcome
            elif len(items) == 1:
                yield Settled(items[0].planned.slot, Failed(outcome))
            else:
                _log.warning("a batch of %d for %s is halved: %s", len(items), encoder.card.name, outcome)
                middle = len(items) // 2
                pending.extendleft((items[middle:], items[:middle]))

    def _try(self, encoder: Encoder, items: tuple[StagedItem, ...]) -> Rows | EpdError:
        try:
            return self._forward(encoder, items)
        except Exception as error:
            if is_device_lost(error):
                raise DeviceLost(str(error)) from error
            if is_out_of_memory(error):
                self._device.free_cache()
                return EncodeFailed("out of memory")
            if isinstance(error, EpdError):
                return error
            if len(items) == 1:
                _log.exception("encoder %s raised for slot %s", encoder.card.name, items[0].planned.slot.id)
            return EncodeFailed(f"the encoder raised {type(error).__name__}")

    def _forward(self, encoder: Encoder, items: tuple[StagedItem, ...]) -> Rows:
        plans = [item.planned.plan for item in items]
        with torch.inference_mode():
            begun = self._device.stamp()
            stamps, rows = list[Stamp](), list[Tensor]()
            for raws, part_plans in self._forwards(items):
                inputs = encoder.preprocess(raws, part_plans)
                stamps.append(self._device.stamp())
                rows.append(self._runner.run(encoder, inputs))
            packed = rows[0] if len(rows) == 1 else torch.cat(rows)
            done = self._device.stamp()
        expected = (sum(plan.tokens for plan in plans), encoder.card.hidden)
        if tuple(packed.shape) != expected:
            raise EncodeFailed(f"the encoder gave rows of {tuple(packed.shape)}, not {expected}")
        return Rows(tuple(item.without_raw() for item in items), packed, begun, stamps[0], done)

    def _forwards(self, items: Sequence[StagedItem]) -> Iterator[tuple[list[Tensor], list[ItemPlan]]]:
        """Raws and plans of each forward: the whole batch, or the parts of an item that is too large."""
        if len(items) > 1:
            yield [item.raw for item in items], [item.planned.plan for item in items]
            return
        for part in split(items[0].planned.plan, self._max_cost):
            yield [items[0].raw[part.raw]], [part.plan]


@dataclass(slots=True)
class GraphFigures:
    """Totals of one encoder's captures since the start.

    ``hits`` were replayed, ``misses`` fit no captured bucket, and ``declined`` fit one but ran eagerly since
    its padding would have cost more than the replay saves. ``units`` are those of the hits, ``padding`` the
    units that were added to them. ``graphs`` is the number of captures, and ``memory`` the device bytes of
    captures and buffers.
    """

    graphs: int = 0
    memory: int = 0
    hits: int = 0
    misses: int = 0
    declined: int = 0
    units: int = 0
    padding: int = 0

    @property
    def padding_share(self) -> float:
        """Padding as a share of all replayed units; 0 before the first replay."""
        return self.padding / (self.units + self.padding) if self.padding else 0.0


class Runner(Protocol):
    """Runs forwards on the thread that owns the device."""

    def warm_up(self, encoder: Encoder) -> None:
        """Make the first real batch as fast as later ones. Called once for each encoder."""
        ...

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        """Packed rows [sum of tokens, hidden], which no later run writes to."""
        ...

    def all_figures(self) -> Mapping[str, GraphFigures]:
        """What captured forwards did, by encoder. May be called from any thread."""
        ...


class EagerRunner:
    """Calls the encoder's forward directly."""

    def warm_up(self, encoder: Encoder) -> None:
        """One small forward."""
        encoder.warm_up()

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        """The encoder's own forward. Its output is a new tensor each time."""
        return encoder.forward(inputs)

    def all_figures(self) -> Mapping[str, GraphFigures]:
        """Empty: nothing is captured."""
        return {}
