"""A logging handler that keeps what AutoGen's event log loses: the time, and the span it was logged in.

AutoGen (0.4 to 0.7) logs its events through Python's logging; ``str(record.msg)`` is JSON and has no time. This
handler writes one JSON object per line::

    {"time_unix_ns": 1764435279556475136, "logger": "autogen_core.events", "level": "INFO",
     "task": "Task-7", "trace_id": "0x…", "span_id": "0x…", "event": {…}}

``event`` is the logged event; a record that is plain text has ``message`` instead. ``task`` is the asyncio task
and ``trace_id`` / ``span_id`` the OpenTelemetry span that were current, where there was one. The module needs
the standard library only, so it may be copied next to an application that cannot install semtrace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENT_LOGGERS = ("autogen_core.events", "autogen_agentchat.events")
"""AutoGen's event loggers, of the core (calls, tools, messages) and of agentchat (tool requests and results)."""

RETRY_LOGGER = "openai._base_client"
"""The OpenAI SDK's logger: the only place where a retried request shows."""


def _event_of(record: logging.LogRecord) -> Any:
    """The record's message as JSON data, or None where it is plain text."""
    dump = getattr(record.msg, "model_dump", None)  # agentchat logs its messages, which are pydantic models
    if callable(dump):
        return dump(mode="json")
    if isinstance(record.msg, str) and record.args:
        return None
    try:
        event = json.loads(str(record.msg))
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _task_name() -> str | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # logged outside of any event loop
        return None
    return task.get_name() if task else None


def _span_ids() -> dict[str, str]:
    """Ids of the current span; nothing where OpenTelemetry was never imported or no span is open."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"0x{context.trace_id:032x}", "span_id": f"0x{context.span_id:016x}"}


def record_as_json(record: logging.LogRecord) -> dict[str, Any]:
    """One log record as the JSON object described in the module's text.

    Args:
        record: Any log record; events are recognised by their message.

    Returns:
        An object that ``json.dumps`` takes. ``time_unix_ns`` is the record's creation time in Unix
        nanoseconds, as exact as ``LogRecord.created`` (a double: about 200 ns).
    """
    line: dict[str, Any] = {
        "time_unix_ns": int(record.created * 1e9),
        "logger": record.name,
        "level": record.levelname,
    }
    task = _task_name()
    if task is not None:
        line["task"] = task
    line |= _span_ids()
    event = _event_of(record)
    if event is None:
        line["message"] = record.getMessage()
    else:
        line["event"] = event
    return line


class JsonLinesHandler(logging.Handler):
    """Appends each record to a file as one line of JSON; see the module's text for the form."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(logging.DEBUG)
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 — closed by close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; an error goes to ``logging``'s own error handling, never to the application."""
        try:
            self._file.write(json.dumps(record_as_json(record), ensure_ascii=False) + "\n")
            self._file.flush()
        except Exception:  # noqa: BLE001 — a handler must not raise into the code that logs
            self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


@contextlib.contextmanager
def recording(path: Path | str) -> Iterator[JsonLinesHandler]:
    """Log AutoGen's events and the SDK's retries to a file while the block runs; a file that is there is added to.

    The loggers' levels are lowered as far as needed and put back afterwards.
    """
    handler = JsonLinesHandler(path)
    levels = [(logging.getLogger(n), logging.DEBUG) for n in EVENT_LOGGERS]
    levels.append((logging.getLogger(RETRY_LOGGER), logging.INFO))
    before = [(logger, logger.level) for logger, _ in levels]
    for logger, level in levels:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield handler
    finally:
        for logger, level in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
        handler.close()
