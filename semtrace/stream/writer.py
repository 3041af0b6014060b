"""Writing a record stream: what `append` has returned for is read back, even if the process is killed the next moment."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING

from semtrace import __version__
from semtrace.errors import FormatError, UsageError
from semtrace.stream import wire
from semtrace.stream.framing import MAX_PAYLOAD, MAX_RECORDS, file_header, frame

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

RUN_BYTES = 16


class StreamWriter:
    """The one writer of one stream, which it makes; may be called from many threads.

    `append` returns when the operating system has the whole record: what it returned for survives the death of
    the process at any instant, not that of the machine. A record that could not be written (the disk is full)
    raises, leaves nothing behind, and is counted in the stream as soon as there is room again (ST-STR-025).

    Attributes:
        path: the file.
        run: 16 bytes that all streams of one run share.
        lost: records that could not be written so far.
    """

    def __init__(
        self,
        path: Path,
        *,
        form: int = wire.CAPTURE,
        run: bytes | None = None,
        producer: str = "semtrace",
        version: str = __version__,
    ) -> None:
        """Make the file and write its head.

        Args:
            path: the file, which must not exist.
            form: `wire.CAPTURE` or `wire.EXCHANGE`.
            run: 16 bytes, drawn if left out; to be given where several processes record one run.
            producer: name of the program that records.
            version: its version.

        Raises:
            UsageError: the file exists or cannot be written.
        """
        if run is not None and len(run) != RUN_BYTES:
            raise UsageError(f"a run is named by {RUN_BYTES} bytes, not {len(run)}", code="stream.run")
        self.path = path
        self.run = secrets.token_bytes(RUN_BYTES) if run is None else run
        self.lost = 0
        self._unsaid = 0  # losses that the stream does not state yet
        self._reason = ""
        self._written = (0, 0)  # bytes and records: one assignment, which no signal can cut in two
        self._unsure = False  # whether there may be more in the file than is acknowledged
        self._lock = threading.Lock()
        self._holder = 0
        self._process = os.getpid()
        self._fd: int | None = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._fd = os.open(path, flags, 0o666)
        except FileExistsError as error:
            raise UsageError(
                "exists already",
                code="file.exists",
                path=str(path),
                hint="a stream is written once, by one writer",
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error
        created = time.time_ns() if form == wire.CAPTURE else 0
        process = self._process if form == wire.CAPTURE else 0
        head = wire.head_record(
            form, self.run if form == wire.CAPTURE else b"", producer, version, process, created
        )
        try:
            self._write(file_header() + frame(0, head), 1)
        except BaseException as error:
            os.close(self._fd)
            self._fd = None
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise

    @property
    def records(self) -> int:
        """Records written so far, the head included."""
        return self._written[1]

    def append(self, payload: bytes) -> int:
        """Write one record.

        Args:
            payload: a serialised `Record`.

        Returns:
            Its ordinal.

        Raises:
            FormatError: it is larger than `MAX_PAYLOAD`.
            UsageError: it cannot be written; nothing of it is in the file.
        """
        return self.append_all((payload,))

    def append_all(self, payloads: tuple[bytes, ...] | list[bytes]) -> int:
        """Write several records, all of them or none; otherwise as `append`.

        Returns:
            The ordinal of the first.
        """
        if any(len(payload) > MAX_PAYLOAD for payload in payloads):
            self.note_lost("a record that is too large", len(payloads))
            raise FormatError(
                f"a record of more than {MAX_PAYLOAD} bytes",
                code="stream.size",
                path=str(self.path),
                requirement="ST-STR-013",
            )
        if os.getpid() != self._process:
            raise UsageError(
                "the writer belongs to another process",
                code="stream.process",
                path=str(self.path),
                hint="each process writes a stream of its own, with the same run",
            )
        if self._holder == threading.get_ident():  # a signal handler that records, while a record is written
            self.note_lost("a record inside of a record", len(payloads))
            raise UsageError("a record inside of a record", code="stream.nested", path=str(self.path))
        with self._lock:
            self._holder = threading.get_ident()
            try:
                return self._append(payloads)
            except OSError as error:
                self.lost += len(payloads)
                self._unsaid += len(payloads)
                self._reason = error.strerror or str(error)
                raise self._unwritable(error) from error
            finally:
                self._holder = 0

    def note_lost(self, reason: str, records: int = 1) -> None:
        """Count records that were lost before they came here: the stream states them before its next record."""
        with contextlib.nullcontext() if self._holder == threading.get_ident() else self._lock:
            self.lost += records
            self._unsaid += records
            self._reason = reason

    def _append(self, payloads: tuple[bytes, ...] | list[bytes]) -> int:
        if self._fd is None:
            raise OSError(0, "the stream is closed")
        first = self.records
        records = list(payloads)
        said = self._unsaid
        if said:
            records.insert(0, wire.gap_record(said, self._reason))
        if first + len(records) > MAX_RECORDS:
            raise OSError(0, f"a stream has at most {MAX_RECORDS} records")
        self._write(b"".join(frame(first + at, record) for at, record in enumerate(records)), len(records))
        self._unsaid -= said
        return self.records - len(payloads)

    def _write(self, data: bytes, records: int) -> None:
        """Write all of it or leave nothing; whatever interrupts it, the next call finds the file as it was."""
        assert self._fd is not None  # noqa: S101  # the callers have seen to it
        size, before = self._written
        if self._unsure:
            os.ftruncate(self._fd, size)
        self._unsure = True
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, size)
            self._unsure = False
            raise
        self._written = (size + len(data), before + records)
        self._unsure = False

    def close(self) -> None:
        """Write the end of the stream and close the file; to be called once more does nothing.

        Raises:
            UsageError: the end cannot be written. The file is closed all the same, and reads as one that was not.
        """
        if self._fd is None or os.getpid() != self._process:
            return
        with self._lock:
            fd, end = self._fd, []
            if self._unsaid:
                end.append(wire.gap_record(self._unsaid, self._reason))
            try:
                end.append(wire.end_record(self.records + len(end)))
                self._write(b"".join(frame(self.records + at, part) for at, part in enumerate(end)), len(end))
            except OSError as error:
                raise self._unwritable(error) from error
            finally:
                self._fd = None
                os.close(fd)

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"cannot be written: {error.strerror or error}", code="file.unwritable", path=str(self.path)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
