"""What a sweep has done so far, a file for each point, so that it can go on after a stop."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

import semtrace
from semtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from semtrace.sweep.document import Point

PARTS: Final = ".parts"
"""What is added to the name of the table for the folder."""
_LOCK: Final = "lock"


@dataclass(frozen=True)
class Parts:
    """The rows that are done.

    Attributes:
        folder: where they are.
        trace: trace digest of the trace; rows of another one, or of another version of semtrace, are not these.
    """

    folder: Path
    trace: str

    def read(self, todo: Iterable[Point]) -> dict[int, dict[str, Any]]:
        """The rows that are there, whole and unchanged, by point."""
        found: dict[int, dict[str, Any]] = {}
        for point in todo:
            try:
                kept = json.loads(self._file(point).read_text("utf-8"))
                row, digest = kept["row"], kept["digest"]
            except (OSError, ValueError, TypeError, KeyError):
                continue
            if digest == _digest(row):
                found[point.index] = {**row, "point": point.index}
        return found

    def write(self, point: Point, row: Mapping[str, Any]) -> None:
        """Keep a row; a process that is killed meanwhile leaves none.

        Raises:
            UsageError: it cannot be written.
        """
        file = self._file(point)
        beside = file.with_suffix(".tmp")
        try:
            beside.write_text(json.dumps({"row": row, "digest": _digest(row)}), "utf-8")
            beside.replace(file)
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror or error}",
                code="file.unwritable",
                path=str(self.folder),
                hint="when there is room again, --resume goes on with what is done",
            ) from error

    def remove(self, todo: Iterable[Point]) -> None:
        """All is in the table: its own files are not needed any more."""
        for point in todo:
            self._file(point).unlink(missing_ok=True)

    def _file(self, point: Point) -> Path:
        of = blake3(f"{semtrace.__version__} {self.trace}".encode()).hexdigest()[:16]
        return self.folder / f"{of}-{point.key}.json"


def _digest(row: object) -> str:
    return blake3(json.dumps(row).encode()).hexdigest()


def _in_use(folder: Path) -> bool:
    """Whether another sweep is at work in a folder."""
    try:
        with (folder / _LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # there is no lock, or none that can be looked at: nobody holds it
    return False


def _busy(folder: Path) -> UsageError:
    return UsageError(
        "another sweep is at work here",
        code="sweep.busy",
        path=str(folder),
        hint="let it end, or name another output",
    )


@contextmanager
def parts_of(output: Path, trace: str, *, resume: bool) -> Iterator[Parts]:
    """The folder of what is done, which no other sweep uses meanwhile; it vanishes at the end if it is empty.

    Args:
        output: the table that is to be written.
        trace: trace digest of the trace.
        resume: whether what is there may be taken.

    Raises:
        UsageError: the folder is there and may not be taken, is no folder, is in use, or cannot be made.
    """
    folder = output.with_name(output.name + PARTS)
    there = os.path.lexists(folder)
    if there and (folder.is_symlink() or not folder.is_dir()):
        raise UsageError(
            "is no folder, where a sweep keeps what it has done", code="sweep.parts", path=str(folder)
        )
    if there and not resume:
        if _in_use(folder):
            raise _busy(folder)
        raise UsageError(
            f"{folder} has what an earlier sweep has done",
            code="sweep.parts",
            hint="--resume takes it; remove the folder to begin anew",
        )
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / _LOCK).open("a")
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror or error}", code="file.unwritable", path=str(folder)
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _busy(folder) from None
        try:
            yield Parts(folder, trace)
        finally:
            with contextlib.suppress(OSError):
                if [file.name for file in folder.iterdir()] == [_LOCK]:
                    (folder / _LOCK).unlink()
                    folder.rmdir()
