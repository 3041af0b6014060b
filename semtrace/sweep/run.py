"""Running the points of a sweep: over all cores or a Ray cluster, resumable, into one Parquet file."""

from __future__ import annotations

import json
import os
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from semtrace.errors import SemtraceError, UnsupportedError, UsageError
from semtrace.store.bundle import open_bundle
from semtrace.store.digests import show, work_digest
from semtrace.sweep.columns import table_of
from semtrace.sweep.document import points
from semtrace.sweep.point import evaluate, grid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from semtrace.records.trace import Trace
    from semtrace.sweep.document import Point, SweepDocument

PARTS: Final = ".parts"
"""What is added to the name of the table for the folder that keeps what is done."""
_QUEUED: Final = 4
"""Points that each worker has waiting for it."""


class Workers(Protocol):
    """What evaluates points."""

    def rows(self, todo: Sequence[Point]) -> Iterator[dict[str, Any]]:
        """The row of each point, in any order, as they come; an error of a point is in its row."""
        ...


def row_of(trace: Trace, point: Point) -> dict[str, Any]:
    """The row of a point; if its replay is refused, one that says why."""
    try:
        return {**evaluate(trace, point), "error": None}
    except SemtraceError as error:
        return {**grid_of(point), "error": str(error)}


_TRACE: dict[str, Trace] = {}
"""The trace of a worker process, read once."""


def _in_process(path: str, point: Point) -> dict[str, Any]:
    if path not in _TRACE:
        _TRACE[path] = open_bundle(Path(path)).trace
    return row_of(_TRACE[path], point)


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

    def rows(self, todo: Sequence[Point]) -> Iterator[dict[str, Any]]:
        """The row of each point, as they come."""
        if self.count == 1:
            for point in todo:
                yield row_of(self.trace, point)
            return
        with ProcessPoolExecutor(self.count, mp_context=get_context("spawn")) as pool:
            yield from _as_they_come(
                todo, self.count, lambda point: pool.submit(_in_process, str(self.path), point)
            )


def _as_they_come(
    todo: Sequence[Point], workers: int, submit: Callable[[Point], Future[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Results as they come, with a few points waiting for each worker and no more."""
    left = iter(todo)
    running: set[Future[dict[str, Any]]] = set()
    try:
        while True:
            while len(running) < workers * _QUEUED and (point := next(left, None)) is not None:
                running.add(submit(point))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()
    finally:
        for each in running:
            each.cancel()


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

    def rows(self, todo: Sequence[Point]) -> Iterator[dict[str, Any]]:
        """The row of each point, as they come.

        Raises:
            UnsupportedError: Ray is not installed.
        """
        try:
            import ray  # type: ignore[import-not-found, unused-ignore]  # an extra
        except ImportError:
            raise UnsupportedError(
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


@dataclass
class Parts:
    """The rows of a sweep that are done, each in a file of its own until all are: so that a sweep can go on.

    Attributes:
        folder: where they are.
        work: work digest of the trace.
    """

    folder: Path
    work: str
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(self, todo: Iterable[Point]) -> dict[int, dict[str, Any]]:
        """The rows that are there, by point."""
        found: dict[int, dict[str, Any]] = {}
        for point in todo:
            try:
                row = json.loads(self._file(point).read_text("utf-8"))
            except (FileNotFoundError, ValueError):
                continue
            found[point.index] = {**row, "point": point.index}
        return found

    def write(self, point: Point, row: Mapping[str, Any]) -> None:
        """Keep a row; a process that is killed meanwhile leaves none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file(point)
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(row), "utf-8")
        beside.replace(file)

    def remove(self) -> None:
        """All is in the table: they are not needed any more."""
        if self.folder.is_dir():
            for file in self.folder.iterdir():
                file.unlink()
            self.folder.rmdir()

    def _file(self, point: Point) -> Path:
        return self.folder / f"{self.work.removeprefix('blake3:')[:16]}-{point.key}.json"


def sweep(
    document: SweepDocument,
    path: Path,
    output: Path,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """Run a sweep and write its table.

    Args:
        document: the sweep.
        path: the trace's bundle.
        output: the Parquet file to write. What is done is kept beside it in a folder until all is.
        folder: what relative paths in the document are relative to.
        workers: processes; as many as there are cores if left out.
        ray: address of a Ray cluster, or `local` to start one here; without it, processes of this machine.
        resume: take what a sweep that was stopped has done already.
        progress: called with (points done, points in all).

    Returns:
        the table, in the order of points.

    Raises:
        UsageError: there are too many points, or the remains of another sweep are in the way.
        DocumentError: a combination is no engine.
    """
    trace = open_bundle(path).trace
    todo = points(document, trace, folder)
    parts = Parts(output.with_name(output.name + PARTS), show(work_digest(trace)))
    if parts.folder.exists() and not resume:
        raise UsageError(
            f"{parts.folder} has what an earlier sweep has done",
            code="sweep.parts",
            hint="--resume takes it; remove the folder to begin anew",
        )
    rows = parts.read(todo) if resume else {}
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
    for row in made.rows(left):
        rows[row["point"]] = row
        parts.write(by_index[row["point"]], row)
        if progress is not None:
            progress(len(rows), len(todo))
    table = table_of([rows[point.index] for point in todo])
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    pq.write_table(table, beside, compression="zstd")
    beside.replace(output)
    parts.remove()
    return table
