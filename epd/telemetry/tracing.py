"""Trace context across processes: W3C ``traceparent`` in a plain dict, which messages carry.

A process without an OpenTelemetry SDK records nothing, but still passes on the caller's context.
Source: W3C Trace Context, https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TRACER = "epd"
_FIELDS = ("traceparent", "tracestate")

Attribute = str | int | float | bool

_propagator = TraceContextTextMapPropagator()


@contextmanager
def span(
    name: str, carrier: Mapping[str, str] | None = None, **attributes: Attribute
) -> Iterator[dict[str, str]]:
    """Run a block as a child span of the carrier's; yields the carrier for the messages that the block sends.

    Args:
        name: the name of the span, ``epd.<stage>``.
        carrier: the ``trace`` of a message, or request headers in lower case; other headers are ignored.
        attributes: attributes of the span; never media bytes or URLs with credentials.
    """
    context = _propagator.extract(dict(carrier)) if carrier else Context()
    tracer = trace.get_tracer(_TRACER)
    with tracer.start_as_current_span(name, context=context, attributes=attributes):
        yield inject()


def inject() -> dict[str, str]:
    """The current trace context for a message; empty where there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier


def carrier_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace fields of request headers in any case; empty where they are missing or invalid."""
    lower = {name.lower(): value for name, value in headers.items()}
    carrier = {name: lower[name] for name in _FIELDS if name in lower}
    if not carrier:
        return carrier
    context = trace.get_current_span(_propagator.extract(carrier)).get_span_context()
    return carrier if context.is_valid else {}
