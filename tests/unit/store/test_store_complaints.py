"""What a caller is told of a store in trouble: refusing is not the same as not answering."""

from __future__ import annotations

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as ConnectionLost

from epd.contracts.errors import StoreUnavailable
from epd.store.connection import answering

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", "the store refuses (MISCONF)"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "the store refuses (OOM)"),
        ("ERR unknown command for key 10.0.0.7", "the store refuses (ERR)"),
        ("something else of 10.0.0.7", "the store refuses (error)"),
    ],
)
def test_a_refusal_is_told_by_its_code_alone(answer: str, told: str) -> None:
    with pytest.raises(StoreUnavailable) as caught, answering():
        raise BaseParser.parse_error(answer)
    assert str(caught.value) == told


def test_silence_is_told_as_silence() -> None:
    with pytest.raises(StoreUnavailable, match="does not answer: ConnectionError"), answering():
        raise ConnectionLost("10.0.0.7 refused")
