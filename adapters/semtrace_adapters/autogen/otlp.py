"""OpenTelemetry spans as OTLP/JSON, the standard's own JSON form, which keeps times to the nanosecond.

Only attributes of the SDK's span objects are used: nothing is imported.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def span_as_otlp(span: Any) -> dict[str, Any]:
    """One span of the OpenTelemetry SDK, ended or not, as an OTLP/JSON document.

    Args:
        span: a ``ReadableSpan``. One that has not ended gets no ``endTimeUnixNano``.
    """
    context = span.get_span_context()
    made: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value + 1,  # the SDK counts from 0, OTLP from 1
        "startTimeUnixNano": str(span.start_time),
        "attributes": _attributes(span.attributes),
    }
    if span.end_time is not None:
        made["endTimeUnixNano"] = str(span.end_time)
    if span.parent is not None:
        made["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.links:
        made["links"] = [
            {
                "traceId": f"{link.context.trace_id:032x}",
                "spanId": f"{link.context.span_id:016x}",
                "attributes": _attributes(link.attributes),
            }
            for link in span.links
        ]
    if span.events:
        made["events"] = [
            {
                "name": event.name,
                "timeUnixNano": str(event.timestamp),
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ]
    status: dict[str, Any] = {"code": span.status.status_code.value}
    if span.status.description:
        status["message"] = span.status.description
    made["status"] = status
    for name in ("attributes", "events", "links"):
        dropped = getattr(span, f"dropped_{name}", 0)
        if dropped:
            made[f"dropped{name.capitalize()}Count"] = dropped
    scope = getattr(span, "instrumentation_scope", None)
    scoped: dict[str, Any] = {"spans": [made]}
    if scope is not None:
        scoped["scope"] = {"name": scope.name, "version": scope.version or ""}
    return {"resourceSpans": [{"scopeSpans": [scoped]}]}


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": k, "value": _value(v)} for k, v in value.items()]}}
    return {"stringValue": str(value)}
