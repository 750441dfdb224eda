"""A bounded memory: the least recently used go first."""

from __future__ import annotations

from epd.recent import Recent


def test_the_least_recently_used_goes() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]
    recent.put("a", 4)
    recent.put("d", 5)
    assert [recent.get(key) for key in "acd"] == [4, None, 5]
    assert len(recent) == 2
