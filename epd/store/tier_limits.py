"""The limits of the tiers in bytes."""

from __future__ import annotations

from dataclasses import dataclass

#: Members that one step of an eviction looks at, so that a script stays short.
MAX_WALK = 1000

#: Beyond this share of its limit L1 overflows into L2. What is not in L2 yet when the limit itself is reached
#: is lost, as without L2: the rest is the time that copying has.
_TARGET = 7 / 8


@dataclass(frozen=True, slots=True)
class TierLimits:
    """``l2`` is None where there is no second tier."""

    l1: int
    l2: int | None = None

    @property
    def tiers(self) -> int:
        """How many there are."""
        return 1 if self.l2 is None else 2

    @property
    def l1_target(self) -> int:
        """What L1 holds at most once the mover is through."""
        return int(self.l1 * _TARGET)
