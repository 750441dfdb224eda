"""Trace context: passed on without an SDK, a child span with one, nothing for an invalid context."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from epd.telemetry.logging import configure_logging
from epd.telemetry.tracing import carrier_of, inject, span

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CARRIER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


def test_a_context_is_passed_on_without_an_sdk() -> None:
    with span("epd.fetch", CARRIER, item=3) as carrier:
        assert carrier == CARRIER
        assert inject() == CARRIER
    assert inject() == {}


@pytest.mark.parametrize("carrier", [None, {}, {"traceparent": "nonsense"}, {"other": "x"}])
def test_without_a_context_there_is_none_to_pass_on(carrier: dict[str, str] | None) -> None:
    with span("epd.fetch", carrier) as onward:
        assert onward == {}


def test_with_an_sdk_spans_are_children_of_the_carrier(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    with span("epd.fetch", CARRIER, item=3) as carrier:
        pass
    with pytest.raises(ZeroDivisionError), span("epd.decode", carrier):
        _ = 1 // 0
    fetch, decode = exporter.get_finished_spans()
    assert fetch.parent is not None
    assert decode.parent is not None
    assert f"{fetch.parent.span_id:016x}" == PARENT
    assert decode.parent.span_id == fetch.context.span_id
    assert f"{decode.context.trace_id:032x}" == TRACE
    assert (dict(fetch.attributes or {}), decode.events[0].name) == ({"item": 3}, "exception")


def test_headers_give_their_trace_fields_in_any_case() -> None:
    headers = {"TraceParent": CARRIER["traceparent"], "TRACESTATE": "vendor=1", "Host": "x"}
    assert carrier_of(headers) == CARRIER
    assert carrier_of({"traceparent": "00-short-01"}) == {}
    assert carrier_of({"tracestate": "vendor=1"}) == {}


def test_logging_leaves_a_handler_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", root.level)
    before = list(root.handlers)
    configure_logging("debug")
    assert root.handlers == before
    assert root.level == logging.DEBUG
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging("loud")
