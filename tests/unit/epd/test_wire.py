"""What every wire type promises: a value that may be None travels as an absent field, and comes back."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pytest

import api
import epd
import tasks
from epd.contracts.wire import Wire


def _wire_types(base: type[Wire] = Wire) -> Iterator[type[Wire]]:
    for package in (api, epd, tasks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found = [base]
    while found:
        each = found.pop()
        found += each.__subclasses__()
        yield each


def _may_be_none(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation)


@pytest.mark.parametrize("wire", sorted(set(_wire_types()), key=str))
def test_what_may_be_none_may_be_absent(wire: type[Wire]) -> None:
    """``to_json`` leaves out what is None, so a field without a default could not be read again."""
    fields = wire.model_fields.items()
    assert [name for name, field in fields if _may_be_none(field.annotation) and field.is_required()] == []
