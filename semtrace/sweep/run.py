"""Running the points of a sweep: over all cores or a Ray cluster, resumable, into one Parquet file."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

import semtrace
from semtrace.errors import ReplayError, SemtraceError, UsageError
from semtrace.store.bundle import open_bundle
from semtrace.store.container import check_output, replacing
from semtrace.store.digests import show, trace_digest
from semtrace.sweep.columns import table_of
from semtrace.sweep.document import points
from semtrace.sweep.parts import Parts, parts_of
from semtrace.sweep.point import evaluate, grid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterator, Sequence
    from multiprocessing.process import BaseProcess

    from semtrace.records.trace import Trace
    from semtrace.sweep.document import Point, SweepDocument

_MARK: Final = b"semtrace.sweep"
"""Key in the table's metadata."""
_QUEUED: Final = 4
"""Points that each worker has waiting for it."""


class Workers(Protocol):
    """What evaluates points."""

    def rows(self, todo: Sequence[Point]) -> Generator[dict[str, Any], None, None]:
        """The row of each point, in any order, as they come; an error of a point is in its row. Closed early, it stops them."""
        ...


def row_of(trace: Trace, point: Point) -> dict[str, Any]:
    """The row of a point; if its replay is refused, one that says why."""
    try:
        return {**evaluate(trace, point), "error": None}
    except SemtraceError as error:
        return {**grid_of(point), "error": str(error)}


_TRACE: dict[str, Trace] = {}
"""The trace of a worker process, read once."""


def _leave_with(parent: int) -> None:
    """A worker whose parent was killed ends soon after; what ends the parent in order lets the parent end its workers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_process(path: str, point: Point) -> dict[str, Any]:
    if path not in _TRACE:
        _TRACE[path] = open_bundle(Path(path)).trace
    return row_of(_TRACE[path], point)


@contextmanager
def _killed_early(others: Container[BaseProcess]) -> Iterator[None]:
    """Child processes but the others are killed if they are left before they are done: nobody waits for their points."""
    try:
        yield
    except BaseException:
        for child in active_children():
            if child not in others:
                child.kill()
        raise


@dataclass(frozen=True)
class Here:
    """Workers on this machine: processes, or this one where there is to be only one.

    Attributes:
        path: where the trace is.
        trace: the trace.
        count: how many.
    """

    path: Path
    trace: Trace
    count: int

    def rows(self, todo: Sequence[Point]) -> Generator[dict[str, Any], None, None]:
        """The row of each point, as they come."""
        if self.count == 1:
            for point in todo:
                yield row_of(self.trace, point)
            return
        others = set(active_children())
        try:
            with (
                ProcessPoolExecutor(
                    self.count,
                    mp_context=get_context("spawn"),
                    initializer=_leave_with,
                    initargs=(os.getpid(),),
                ) as pool,
                _killed_early(others),
            ):
                yield from _as_they_come(
                    todo, self.count, lambda point: pool.submit(_in_process, str(self.path), point)
                )
        except BrokenProcessPool:
            raise ReplayError(
                "a worker process was killed, perhaps for want of memory",
                code="sweep.worker",
                hint="--resume goes on with what is done; fewer --workers take less memory",
            ) from None


def _as_they_come(
    todo: Sequence[Point], workers: int, submit: Callable[[Point], Future[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Results as they come, with a few points waiting for each worker and no more."""
    left = iter(todo)
    running: set[Future[dict[str, Any]]] = set()
    while True:
        while len(running) < workers * _QUEUED and (point := next(left, None)) is not None:
            running.add(submit(point))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for each in done:
            yield each.result()


@dataclass(frozen=True)
class OnRay:
    """Workers on a Ray cluster. Every node must see the trace under the same path, and have semtrace.

    Attributes:
        path: where the trace is.
        address: the cluster's address; None for one started on this machine.
        count: processes to start on this machine, if it is started here.
    """

    path: Path
    address: str | None
    count: int

    def rows(self, todo: Sequence[Point]) -> Generator[dict[str, Any], None, None]:
        """The row of each point, as they come.

        Raises:
            UsageError: Ray is not installed.
        """
        try:
            import ray  # type: ignore[import-not-found, unused-ignore]  # an extra
        except ImportError:
            raise UsageError(
                "Ray is not installed", code="sweep.ray", hint="pip install 'semtrace[ray]'"
            ) from None
        local = {} if self.address else {"num_cpus": self.count}
        ray.init(address=self.address, log_to_driver=False, include_dashboard=False, **local)
        try:
            remote = ray.remote(_in_process)
            left = iter(todo)
            workers = int(ray.cluster_resources().get("CPU", 1))
            running: list[Any] = []
            while True:
                while len(running) < workers * _QUEUED and (point := next(left, None)) is not None:
                    running.append(remote.remote(str(self.path.resolve()), point))
                if not running:
                    return
                done, running = ray.wait(running)
                yield from ray.get(done)
        finally:
            ray.shutdown()


def sweep(
    document: SweepDocument,
    path: Path,
    output: Path,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """Run a sweep and write its table.

    Args:
        document: the sweep.
        path: the bundle of a valid trace.
        output: the Parquet file to write. What is done is kept beside it in a folder until all is.
        folder: what relative paths in the document are relative to.
        workers: processes; as many as there are cores if left out.
        ray: address of a Ray cluster, or `local` to start one here; without it, processes of this machine.
        resume: take what a sweep that was stopped has done already.
        overwrite: whether the output may be replaced.
        progress: called with (points done, points in all).

    Returns:
        the table, in the order of points.

    Raises:
        UsageError: there are too many points, the output cannot be written, the remains of another sweep are in the way, or
            another one is at work there.
        ReplayError: a worker was killed.
        DocumentError: a combination is no engine.
    """
    check_output(output, overwrite=overwrite, inputs=[path])
    trace = open_bundle(path).trace
    todo = points(document, trace, folder)
    with parts_of(output, show(trace_digest(trace)), resume=resume) as parts:
        table = _run(todo, parts, trace, path, workers, ray, progress)
        marked = table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: _mark(todo, trace)})
        with replacing(output, overwrite=overwrite) as beside:
            pq.write_table(marked, beside, compression="zstd")
        parts.remove(todo)
    return table


def finished(
    document: SweepDocument, path: Path, output: Path, *, folder: Path | None = None
) -> pa.Table | None:
    """The table at the output, if it is that of this very sweep, done by this version; else None.

    Args:
        document: the sweep.
        path: the bundle of a valid trace.
        output: the Parquet file.
        folder: what relative paths in the document are relative to.
    """
    try:
        mark = (pq.read_schema(output).metadata or {}).get(_MARK)
    except (OSError, pa.ArrowException):
        return None
    trace = open_bundle(path).trace
    return pq.read_table(output) if mark == _mark(points(document, trace, folder), trace) else None


def _mark(todo: Sequence[Point], trace: Trace) -> bytes:
    """What a table is told by to be that of a sweep: its points, the trace, and who ran it."""
    of = [semtrace.__version__, show(trace_digest(trace)), *(point.key for point in todo)]
    return blake3(json.dumps(of).encode()).hexdigest().encode()


def _run(
    todo: Sequence[Point],
    parts: Parts,
    trace: Trace,
    path: Path,
    workers: int | None,
    ray: str | None,
    progress: Callable[[int, int], None] | None,
) -> pa.Table:
    """The table of all points, those that are done taken as they are."""
    rows = parts.read(todo)
    left = [point for point in todo if point.index not in rows]
    count = workers or os.cpu_count() or 1
    made: Workers = (
        OnRay(path, None if ray == "local" else ray, count)
        if ray is not None
        else Here(path, trace, min(count, max(len(left), 1)))
    )
    by_index = {point.index: point for point in todo}
    if progress is not None:
        progress(len(rows), len(todo))
    with closing(made.rows(left)) as coming:
        for row in coming:
            rows[row["point"]] = row
            parts.write(by_index[row["point"]], row)
            if progress is not None:
                progress(len(rows), len(todo))
    return table_of([rows[point.index] for point in todo])
