"""Where the live recorder takes hold of AutoGen: its loggers, its spans, its teams. All of it is undone afterwards.

OpenTelemetry, OpenInference and AutoGen are asked for by name when they are needed, and not missed where they are absent.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Note = Callable[[str], None]
    """Told what is not recorded, and why."""


class _Tap(logging.Filter):
    """Hands a logger's records to handlers, and keeps those from all others that they would not have reached before."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self.logger = logger
        self.handlers: tuple[logging.Handler, ...] = ()
        self._before = logger.level
        self._effective = logger.getEffectiveLevel()
        self._lowered = self._before
        logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record goes on to the logger's own handlers."""
        for handler in self.handlers:
            handler.handle(record)
        return record.levelno >= self._effective

    def add(self, handler: logging.Handler, level: int) -> None:
        """Hand records from a level on to a handler too."""
        self.handlers += (handler,)
        self._lowered = min(level, self.logger.getEffectiveLevel())
        self.logger.setLevel(self._lowered)

    def remove(self, handler: logging.Handler) -> bool:
        """Take a handler off; with the last one the logger is as it was. Whether that was the last one."""
        self.handlers = tuple(each for each in self.handlers if each is not handler)
        if self.handlers:
            return False
        self.logger.removeFilter(self)
        if self.logger.level == self._lowered:  # else the application has set another
            self.logger.setLevel(self._before)
        return True


_TAPS: Final[dict[str, _Tap]] = {}
_TAPS_LOCK: Final = threading.Lock()


@contextlib.contextmanager
def logged(handler: logging.Handler, levels: Mapping[str, int]) -> Iterator[None]:
    """Give a handler the records of loggers, by name, from a level on, without anybody else seeing more than before."""
    with _TAPS_LOCK:
        for name, level in levels.items():
            if name not in _TAPS:
                _TAPS[name] = _Tap(logging.getLogger(name))
            _TAPS[name].add(handler, level)
    try:
        yield
    finally:
        with _TAPS_LOCK:
            for name in levels:
                if _TAPS[name].remove(handler):
                    del _TAPS[name]


class _Spans:
    """The one span processor that is added to a provider: it passes spans on to those who record at the moment.

    A provider has no way to take a processor off again.
    """

    def __init__(self) -> None:
        self.active: tuple[Any, ...] = ()
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()  # providers that have it
        self.lock = threading.Lock()

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        for each in self.active:
            each.on_start(span, parent_context)

    def _on_ending(self, span: Any) -> None:
        """Nothing: spans are recorded when they have ended."""

    def on_end(self, span: Any) -> None:
        for each in self.active:
            each.on_end(span)

    def shutdown(self) -> None:
        """Nothing: who records closes his recording."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002  # the SDK's signature
        return True


_SPANS: Final = _Spans()


@contextlib.contextmanager
def spans_watched(processor: Any, note: Note) -> Iterator[Any]:
    """Give a processor all spans of the block.

    Yields:
        The tracer provider; None where there is no SDK, or where the application has a provider of another make.
    """
    provider = None
    try:
        provider = _provider(note)
    except Exception as error:  # noqa: BLE001  # the application goes on without spans
        note(f"spans: {type(error).__name__}: {error}")
    if provider is None:
        yield None
        return
    with _SPANS.lock:
        _SPANS.active += (processor,)
    try:
        yield provider
    finally:
        with _SPANS.lock:
            _SPANS.active = tuple(each for each in _SPANS.active if each is not processor)


def _provider(note: Note) -> Any:
    """The application's tracer provider, with our processor; one is set if it has none."""
    try:
        trace: Any = importlib.import_module("opentelemetry.trace")
        sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
        sampling: Any = importlib.import_module("opentelemetry.sdk.trace.sampling")
        resources: Any = importlib.import_module("opentelemetry.sdk.resources")
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if not hasattr(provider, "add_span_processor"):
        unlimited = sdk.SpanLimits.UNSET
        limits = sdk.SpanLimits(
            max_attributes=unlimited,
            max_span_attributes=unlimited,
            max_event_attributes=unlimited,
            max_events=unlimited,
            max_links=unlimited,
        )  # a call with a long history has more attributes than the SDK keeps by itself
        provider = sdk.TracerProvider(
            sampler=sampling.ALWAYS_ON, resource=resources.Resource({}), span_limits=limits
        )
        trace.set_tracer_provider(provider)
        if trace.get_tracer_provider() is not provider:
            note("spans: the application's tracer provider takes no span processors")
            return None
    with _SPANS.lock:
        if provider not in _SPANS.known:
            provider.add_span_processor(_SPANS)
            _SPANS.known.add(provider)
    return provider


@contextlib.contextmanager
def instrumented(provider: Any, note: Note) -> Iterator[None]:
    """Have the starts and ends of OpenAI calls as spans, through OpenInference's instrumentor."""
    instrumentor: Any = None
    try:
        module: Any = importlib.import_module("openinference.instrumentation.openai")
        instrumentor = module.OpenAIInstrumentor()
        if instrumentor.is_instrumented_by_opentelemetry:
            instrumentor = None  # the application has done it
        else:
            instrumentor.instrument(tracer_provider=provider)
    except ImportError:
        instrumentor = None
    except Exception as error:  # noqa: BLE001  # the application goes on without these spans
        instrumentor = None
        note(f"OpenInference: {type(error).__name__}: {error}")
    try:
        yield
    finally:
        if instrumentor is not None:
            with contextlib.suppress(Exception):
                instrumentor.uninstrument()


@contextlib.contextmanager
def teams_watched(started: Callable[[Any], None], note: Note) -> Iterator[None]:
    """Be told of each team of which a run starts."""
    try:
        module: Any = importlib.import_module("autogen_agentchat.teams")
        team: Any = module.BaseGroupChat
        original = team.run_stream
    except ImportError:
        yield  # an application of autogen_core alone has no teams
        return
    except AttributeError as error:
        note(f"configs of teams: {error}")
        yield
        return

    def run_stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        started(self)
        return original(self, *args, **kwargs)

    run_stream.__doc__ = original.__doc__
    team.run_stream = run_stream
    try:
        yield
    finally:
        if team.run_stream is run_stream:
            team.run_stream = original
