"""The captured buckets of one encoder: capture within bounds, replay, and when a replay is worth it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_worker.encoders.base import Capturable, Inputs
from gpu_worker.engine.device import is_device_lost, is_out_of_memory
from gpu_worker.engine.graphs.buckets import Bucket, StaticBuffers, fits, load_of, smallest_fit
from gpu_worker.engine.graphs.cuda_graph import Call, Capture, GraphBackend, is_capture_refusal

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureBounds:
    """Most ``memory`` bytes of one encoder's static buffers and graphs, and most ``graphs``."""

    memory: int
    graphs: int


class GraphSet:
    """The captures of one encoder. For one thread.

    ``missing`` has the wanted buckets without a capture, with the reason.
    """

    def __init__(
        self, encoder: Capturable, sample: Inputs, wanted: Sequence[Bucket], backend: GraphBackend
    ) -> None:
        self._encoder = encoder
        self._form = encoder.graph_form
        self._backend = backend
        self._sample = sample
        self._base = backend.memory()
        self._wanted = sorted(wanted, key=lambda bucket: bucket.units, reverse=True)
        self._buffers = StaticBuffers(self._form, sample, self._wanted[0])
        self._captures: dict[Bucket, Capture] = {}
        self.missing: dict[Bucket, str] = {}
        self.calibration = Calibration(())

    @property
    def captured(self) -> list[Bucket]:
        """Buckets that can be replayed, largest first."""
        return list(self._captures)

    def memory(self) -> int:
        """Measured bytes of buffers and captures."""
        return self._backend.memory() - self._base

    def capture_all(self, bounds: CaptureBounds) -> None:
        """Capture the wanted buckets, largest first, so that smaller ones fit into the pool's memory.

        A bucket that fails or is out of bounds is ``missing``, and its batches run eagerly.

        Raises:
            Exception: the device is lost (``is_device_lost``).
        """
        for bucket in self._wanted:
            if len(self._captures) >= bounds.graphs:
                self.missing[bucket] = f"there are {bounds.graphs} graphs"
                continue
            reason = self._capture(bucket, bounds.memory)
            if reason is not None:
                self.missing[bucket] = reason
                _log.warning("%s: no graph of %d units: %s", self._name, bucket.units, reason)

    def calibrate(self) -> None:
        """Time each bucket replayed and eagerly, and log from how many units on it is replayed.

        A bucket is given up if there is no memory left to run it eagerly, as a real batch would need it.
        """
        timings = [timing for bucket in self.captured if (timing := self._timing(bucket)) is not None]
        self.calibration = Calibration(timings)
        for bucket in self._captures:
            least = self.calibration.least_units(bucket.units)
            _log.info("%s: a graph of %d units is used from %s on", self._name, bucket.units, least)

    def bucket_for(self, inputs: Inputs) -> Bucket | None:
        """The smallest captured bucket that a batch fits into, or ``None``."""
        return smallest_fit(load_of(self._form, inputs), self._captures)

    def units_of(self, inputs: Inputs) -> int:
        """The number of units of a batch."""
        return inputs.tensors[self._form.units].shape[0]

    def run(self, bucket: Bucket, inputs: Inputs) -> Tensor:
        """Replay on a batch. The rows are a copy, made before another replay can write to the pool."""
        self._buffers.fill(bucket, inputs)
        rows = self._captures[bucket].replay()
        paced = self._form.paced
        given, held = inputs.tensors[paced].shape[0], self._buffers.length(paced, bucket)
        return rows[: rows.shape[0] * given // held].clone()

    @property
    def _name(self) -> str:
        return self._encoder.card.name

    def _capture(self, bucket: Bucket, memory: int) -> str | None:
        if not fits(load_of(self._form, self._sample), bucket):
            return "the smallest item does not fit"
        self._buffers.fill(bucket, self._sample)
        try:
            capture = self._backend.capture(self._call(bucket))
        except Exception as error:
            if is_device_lost(error) and not is_capture_refusal(error):
                raise
            _log.warning("%s: capture of %d units failed", self._name, bucket.units, exc_info=error)
            return f"{type(error).__name__}: {error}"
        used = self.memory()
        if used > memory:
            capture.release()
            return f"{used} bytes are more than {memory}"
        self._captures[bucket] = capture
        return None

    def _call(self, bucket: Bucket) -> Call:
        """The forward over the bucket's static tensors."""
        tensors = self._buffers.view(bucket)
        rooms = [(room, self._form.segments[room.name].lengths) for room in bucket.segments]

        def forward() -> Tensor:
            layout = {
                lengths: self._backend.lengths(tensors[room.name], room.longest) for room, lengths in rooms
            }
            return self._encoder.forward(Inputs(tensors=tensors, layout=layout))

        return forward

    def _timing(self, bucket: Bucket) -> Timing | None:
        self._buffers.fill(bucket, self._sample)
        try:
            return Timing(
                units=bucket.units,
                replay=self._backend.seconds(self._captures[bucket].replay),
                eager=self._backend.seconds(self._call(bucket)),
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._captures.pop(bucket).release()
            self.missing[bucket] = "no memory to run it eagerly next to the graphs"
            _log.warning("%s: no graph of %d units: %s", self._name, bucket.units, self.missing[bucket])
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds of one forward of a full bucket, replayed and eager."""

    units: int
    replay: float
    eager: float


class Calibration:
    """The timings of one encoder's buckets."""

    def __init__(self, timings: Iterable[Timing]) -> None:
        self._timings = {one.units: one for one in sorted(timings, key=lambda one: one.units)}

    def eager_seconds(self, units: int) -> float:
        """Seconds of an eager run of so many units, interpolated between the two nearest measured sizes.

        Below the smallest size it is that size's time, since such a run is dominated by kernel launches.
        """
        points = list(self._timings.values())
        above = next((one for one in points if one.units >= units), points[-1])
        below = next((one for one in reversed(points) if one.units <= units), above)
        if above.units == below.units:
            return above.eager
        share = (units - below.units) / (above.units - below.units)
        return below.eager + share * (above.eager - below.eager)

    def pays(self, bucket_units: int, units: int) -> bool:
        """Whether a replay of the bucket for so many units is no slower than an eager run."""
        return self._timings[bucket_units].replay <= self.eager_seconds(units)

    def least_units(self, bucket_units: int) -> int | None:
        """The units from which on the bucket pays. ``None`` if it is slower even when full."""
        smaller = max((units for units in self._timings if units < bucket_units), default=0)
        return next((n for n in range(smaller + 1, bucket_units + 1) if self.pays(bucket_units, n)), None)
