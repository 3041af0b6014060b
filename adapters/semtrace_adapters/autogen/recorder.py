"""The live recorder for AutoGen 0.4 to 0.7: the event log, the spans and the teams' configs, in one record stream.

    from semtrace_adapters.autogen.recorder import record_autogen

    with record_autogen("run.stsl"):
        asyncio.run(team.run(task="…"))

What AutoGen itself gives out is kept as it is; ``semtrace seal run.stsl -o run.semtrace`` hands it to the AutoGen
adapter. Nothing beyond the standard library is needed, so that the recorder runs beside whatever AutoGen pins; spans
are recorded where OpenTelemetry's SDK is installed, and the starts of model calls where OpenInference's instrumentor
for OpenAI is. A recorder that fails does not bring the application down: what it could not write is counted, in
the stream and in a warning at the end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semtrace.errors import SemtraceError, UsageError
from semtrace.stream.wire import source_record
from semtrace.stream.writer import StreamWriter
from semtrace_adapters.autogen.handler import EVENT_LOGGERS, RETRY_LOGGER, record_as_json
from semtrace_adapters.autogen.hooks import instrumented, logged, spans_watched, teams_watched
from semtrace_adapters.autogen.otlp import span_as_otlp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ADAPTER = "autogen"
EVENTS = "events.jsonl"
SPANS = "spans.jsonl"

_report = logging.getLogger("semtrace.recorder")


class AutoGenRecording:
    """One recording. Its methods never raise into the application that is recorded.

    A process that was forked while recording writes a stream of its own, beside, with the process id in its
    name; ``semtrace seal`` takes all of them.

    Attributes:
        path: the stream of the process that began the recording.
        paths: the streams of this process.
        records: pieces recorded by this process.
        lost: pieces that could not be recorded by this process.
        spent_ns: time that recording took this process, in ns.
    """

    def __init__(self, path: Path, run: bytes | None = None) -> None:
        """Make the stream.

        Args:
            path: the file, which must not exist.
            run: 16 bytes, drawn if left out; to be given where several processes record one run.

        Raises:
            UsageError: the file exists or cannot be written.
        """
        self.path = path
        self._writer = StreamWriter(path, run=run, producer="semtrace-autogen")
        self.run = self._writer.run
        self.paths = [path]
        self.records = 0
        self.lost = 0
        self.spent_ns = 0
        self.problem = ""
        self._process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._configs: list[str] = []
        self._results = 0
        alive = weakref.ref(self)

        def forked() -> None:
            recording = alive()
            if recording is not None:
                recording._begin_in_child()  # noqa: SLF001  # its own

        os.register_at_fork(after_in_child=forked)

    def _begin_in_child(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self.paths, self.records, self.lost, self.spent_ns = [], 0, 0, 0

    def _current(self) -> StreamWriter:
        """The writer of this process."""
        if os.getpid() != self._process:
            with self._lock:
                if os.getpid() != self._process:
                    path = self.path.with_name(f"{self.path.stem}.{os.getpid()}{self.path.suffix}")
                    self._writer = StreamWriter(path, run=self.run, producer="semtrace-autogen")
                    self.paths, self._process = [path], os.getpid()
        return self._writer

    def log(self, record: logging.LogRecord) -> None:
        """Record one log record."""
        self._put(EVENTS, lambda: ("", record_as_json(record)))

    def span(self, span: Any) -> None:
        """Record a span of the OpenTelemetry SDK, as it is now: at its start and, to replace that, at its end."""

        def make() -> tuple[str, Any]:
            return f"{span.get_span_context().span_id:016x}", span_as_otlp(span)

        self._put(SPANS, make)

    def team(self, team: Any) -> None:
        """Record the component config of a team; of one that is known already, nothing."""

        def make() -> tuple[str, Any] | None:
            config = team.dump_component().model_dump(mode="json")
            text = json.dumps(config, sort_keys=True)
            with self._lock:
                if any(text in known for known in self._configs):  # a team inside of a team is in its config
                    return None
                self._configs.append(text)
            return "", config

        self._put(f"config-{len(self._configs)}.json", make)

    def result(self, result: Any) -> None:
        """Record what `team.run` returned, or the last item of `team.run_stream`: only it says why a run stopped.

        Args:
            result: AutoGen's `TaskResult`.
        """
        with self._lock:
            number, self._results = self._results, self._results + 1
        self._put(f"result-{number}.jsonl", lambda: ("", result.model_dump(mode="json")))

    def _put(self, name: str, make: Callable[[], tuple[str, Any] | None]) -> None:
        begun = time.perf_counter_ns()
        kept = 0
        try:
            writer = self._current()
            try:
                made = make()
                if made is None:
                    return
                payload = source_record(ADAPTER, name, made[0], _json(made[1]))
            except Exception as error:
                writer.note_lost(f"{name}: {type(error).__name__}: {error}"[:200])
                raise
            writer.append(payload)
            kept = 1
        except Exception as error:  # noqa: BLE001  # whatever it is, the application goes on
            with self._lock:
                self.lost += 1
                self.problem = self.problem or f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                self.records += kept
                self.spent_ns += time.perf_counter_ns() - begun

    def note(self, problem: str) -> None:
        """Note that something is not recorded at all."""
        with contextlib.suppress(SemtraceError, OSError):
            self._current().note_lost(problem)
        with self._lock:
            self.lost += 1
            self.problem = self.problem or problem

    def close(self) -> None:
        """End the stream of this process, and say once, as a warning, what could not be recorded."""
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
        except SemtraceError as error:
            self.problem = self.problem or str(error)
            _report.warning("%s: the end of the recording could not be written: %s", self.path, error)
        if self.lost:
            _report.warning(
                "%s: %d of %d records could not be written: %s",
                self.path,
                self.lost,
                self.lost + self.records,
                self.problem,
            )
        elif not self.records:
            _report.warning("%s: nothing was recorded", self.path)


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # lone surrogates: escaped, they come through
        return json.dumps(value).encode()


class RecordingHandler(logging.Handler):
    """A logging handler that records; for applications that set up their loggers themselves."""

    def __init__(self, recording: AutoGenRecording) -> None:
        super().__init__(logging.DEBUG)
        self._recording = recording

    def emit(self, record: logging.LogRecord) -> None:
        """Record one log record; nothing is raised."""
        self._recording.log(record)


class RecordingSpanProcessor:
    """An OpenTelemetry span processor that records; for applications that set up their tracing themselves.

    It has the methods of the SDK's ``SpanProcessor`` without deriving from it, so that it can be had without the SDK.
    """

    def __init__(self, recording: AutoGenRecording) -> None:
        self._recording = recording

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        """Record what is known of a span when it starts: if the process is killed, it is all that is known."""
        self._recording.span(span)

    def _on_ending(self, span: Any) -> None:
        """Nothing: the span is recorded when it has ended."""

    def on_end(self, span: Any) -> None:
        """Record a span that has ended."""
        self._recording.span(span)

    def shutdown(self) -> None:
        """Nothing: the recording is closed by who opened it."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002  # the SDK's signature
        """Nothing to flush: each span is written at once."""
        return True


@contextlib.contextmanager
def record_autogen(
    path: Path | str, *, spans: bool = True, instrument: bool = True, run: bytes | None = None
) -> Iterator[AutoGenRecording]:
    """Record all AutoGen runs of the block.

    Args:
        path: the record stream to write; must not exist.
        spans: record spans, where OpenTelemetry's SDK is installed. A tracer provider is set if the application has
            set none; it stays set, and records nothing, when the block has ended.
        instrument: switch on OpenInference's instrumentor for OpenAI for the block, where it is installed and not on.
        run: 16 bytes that name the run; to be given where several processes record one.

    Yields:
        The recording.

    Raises:
        UsageError: the stream cannot be made. Nothing is raised once the block has begun.
    """
    recording = AutoGenRecording(Path(path), run)
    handler = RecordingHandler(recording)
    with contextlib.ExitStack() as stack:
        stack.callback(recording.close)
        levels = dict.fromkeys(EVENT_LOGGERS, logging.DEBUG) | {RETRY_LOGGER: logging.INFO}
        stack.enter_context(logged(handler, levels))
        stack.enter_context(teams_watched(recording.team, recording.note))
        if spans:
            provider = stack.enter_context(spans_watched(RecordingSpanProcessor(recording), recording.note))
            if instrument and provider is not None:
                stack.enter_context(instrumented(provider, recording.note))
        yield recording


__all__ = ["AutoGenRecording", "RecordingHandler", "RecordingSpanProcessor", "UsageError", "record_autogen"]
