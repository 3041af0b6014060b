"""Sealing: from the captures of one run to a trace, with everything that is missing said (ST-STR-050 …)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from semtrace.errors import FormatError, UsageError
from semtrace.store.bundle import BundleInfo
from semtrace.store.digests import show
from semtrace.store.manifest import SourceFile
from semtrace.stream.capture import CaptureFile, merge_captures, read_capture
from semtrace.stream.capture_to_trace import capture_to_trace
from semtrace.stream.losses import Losses
from semtrace.stream.sources import read_sources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Sealed:
    """What sealing made.

    Attributes:
        trace: the trace.
        execution: the native run beside it, if anything of it was observed.
        info: sources and loss report.
        files: the captures, as they were read.
    """

    trace: Trace
    execution: Execution | None
    info: BundleInfo
    files: list[CaptureFile]


def seal(paths: Sequence[Path], *, recover: bool = False) -> Sealed:
    """Make a trace of the captures of one run.

    Args:
        paths: the captures, one for each process that recorded.
        recover: take what is whole of damaged captures, instead of raising.

    Raises:
        UsageError: a capture cannot be read, is named twice, or they are of several runs.
        FormatError: a capture is not valid, or nothing was recorded.
        IntegrityError: one is damaged, and `recover` is not set.
        UnsupportedError: it needs a newer reader, or an adapter that is not installed.
    """
    files = [read_capture(path, recover=recover) for path in paths]
    _check_run(files)
    losses = Losses()
    for file in files:
        _report(file, losses)
    rows, sources = any(file.rows for file in files), any(file.sources for file in files)
    where = ", ".join(str(path) for path in paths)
    if rows and sources:
        raise FormatError(
            "rows and sources of an adapter in the captures of one run",
            code="stream.mixed",
            path=where,
            requirement="ST-STR-062",
        )
    if not rows and not sources:
        raise FormatError("nothing was recorded", code="stream.empty", path=where, requirement="ST-STR-050")
    if sources:
        read = read_sources(files)
        adapter, version = read.adapter, read.version
        trace, execution, loss = read.trace, read.execution, [*read.loss, *losses.items()]
    else:
        built = capture_to_trace(merge_captures(files), losses)
        adapter, version = "stream", "1"
        trace, execution, loss = built.trace, built.execution, losses.items()
    named = [
        SourceFile(
            name=path.name,
            bytes=path.stat().st_size,
            digest=_file_digest(path),
            adapter=adapter,
            adapter_version=version,
        )
        for path in paths
    ]
    return Sealed(trace, execution, BundleInfo(sources=named, loss=loss), files)


def _check_run(files: Sequence[CaptureFile]) -> None:
    real = {file.path.resolve() for file in files}
    if len(real) < len(files):
        raise UsageError("a capture is named twice", code="stream.twice", path=str(files[0].path))
    first = files[0]
    for file in files[1:]:
        if file.head is not None and first.head is not None and file.head.run != first.head.run:
            raise UsageError(
                f"of another run than {first.path.name}",
                code="stream.runs",
                path=str(file.path),
                requirement="ST-STR-050",
                hint="seal the captures of each run by themselves",
            )


def _report(file: CaptureFile, losses: Losses) -> None:
    """Put what is missing in a capture into the loss report."""
    name = file.path.name
    for reason, records in file.gaps.items():
        losses.add(
            "stream.gap",
            "lost",
            f"the recorder could not write all records: {reason}",
            where=name,
            count=max(records, 1),
        )
    for damage in file.damage:
        losses.add(
            "stream.damaged",
            "lost",
            f"a damaged part of the capture is left out: {damage.message}",
            where=f"{name}, byte {damage.offset}",
            count=max(damage.records or 1, 1),
        )
    if file.torn is not None:
        losses.add(
            "stream.torn",
            "lost",
            "the last record was being written when the recorder ended: it is left out",
            where=f"{name}, byte {file.torn.offset}",
        )
    if not file.closed:
        losses.add(
            "stream.open",
            "unknown",
            "the recorder did not close the capture: what came after the last record is not known",
            where=name,
        )


def _file_digest(path: Path) -> str:
    hasher = blake3()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
    return show(hasher.digest())
