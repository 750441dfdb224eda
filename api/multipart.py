"""The one file of a ``multipart/form-data`` body, in a stream (what ``curl -F file=@path`` sends)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from epd.contracts.errors import InvalidRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM_TYPE = "multipart/form-data"


def boundary_of(content_type: str | None) -> bytes | None:
    """The boundary of a form, None where the body is no form; raises ``InvalidRequest`` without one."""
    kind, options = parse_options_header(content_type)
    if kind.lower() != FORM_TYPE.encode():
        return None
    if not options.get(b"boundary"):
        raise InvalidRequest("Content-Type: multipart/form-data without a boundary")
    return options[b"boundary"]


async def file_chunks(chunks: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[bytes]:
    """The bytes of the form's one file.

    Raises:
        InvalidRequest: the form is malformed, or holds anything but one file.
    """
    form = _FileForm()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
            for piece in form.take():
                yield piece
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"multipart/form-data: {str(error)[:200]}") from None
    if not form.ended:
        raise InvalidRequest("multipart/form-data: no whole file in it")


class _FileForm:
    """The parser's callbacks. It holds the pieces of one chunk only."""

    def __init__(self) -> None:
        self.ended = False
        self._parts = 0
        self._pieces: list[bytes] = []

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def take(self) -> list[bytes]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise InvalidRequest("multipart/form-data: more than one field; send one file")

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._pieces.append(data[start:end])

    def _end(self) -> None:
        self.ended = True
