"""Pieces of what the recorded program itself gave out, handed to the adapter that reads them."""

from __future__ import annotations

import re
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from semtrace.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace
    from semtrace.store.manifest import Loss
    from semtrace.stream.capture import CaptureFile

_OPEN: Final = 64
"""Files that are open at once."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class ReadResult(Protocol):
    """What an adapter's `read` returns."""

    trace: Trace
    execution: Execution | None
    loss: list[Loss]


@dataclass(frozen=True)
class ReadSources:
    """What an adapter made of the sources.

    Attributes:
        adapter: its name.
        version: its version.
        trace: the trace.
        execution: the native run, if anything of it was observed.
        loss: what was lost, unknown, inferred or repaired.
    """

    adapter: str
    version: str
    trace: Trace
    execution: Execution | None
    loss: list[Loss]


def read_sources(files: Sequence[CaptureFile]) -> ReadSources:
    """Let the adapter read the pieces of all captures of a run, each capture as files of its own.

    Raises:
        FormatError: they are of several adapters, or a name is not that of a file; or the adapter cannot use them.
        UsageError: there is no such adapter.
        UnsupportedError: there are no adapters at all.
    """
    names = sorted({name for file in files for name in file.sources.adapters})
    if len(names) > 1:
        raise FormatError(
            f"the captures are for several adapters: {', '.join(names)}",
            code="stream.adapters",
            path=", ".join(str(file.path) for file in files),
            requirement="ST-STR-061",
        )
    read = _reader()
    with tempfile.TemporaryDirectory(prefix="semtrace-") as folder:
        paths = [path for at, file in enumerate(files) for path in _write(file, Path(folder) / str(at))]
        version, result = read(names[0], paths)
    return ReadSources(names[0], version, result.trace, result.execution, result.loss)


def _reader() -> Callable[[str, Sequence[Path]], tuple[str, ReadResult]]:
    """What reads sources by the name of an adapter; it is of the adapters' package, which this one does not import."""
    for entry in entry_points(group="semtrace.sources"):
        found: Callable[[str, Sequence[Path]], tuple[str, ReadResult]] = entry.load()
        return found
    raise UnsupportedError(
        "the captures are for an adapter, and none are installed",
        code="stream.adapter",
        requirement="ST-STR-061",
        hint="install the package that has the adapters",
    )


def _write(file: CaptureFile, folder: Path) -> list[Path]:
    """Write the pieces of one capture as files of lines; few of them are open at once."""
    folder.mkdir()
    opened: OrderedDict[str, BinaryIO] = OrderedDict()
    names: dict[str, Path] = {}
    try:
        for source in file.sources:
            out = opened.pop(source.name, None)
            if out is None:
                if len(opened) >= _OPEN:
                    opened.popitem(last=False)[1].close()
                names[source.name] = folder / _checked(source.name, file.path)
                out = names[source.name].open("ab")
            opened[source.name] = out
            out.write(source.data + b"\n")
    finally:
        for out in opened.values():
            out.close()
    return list(names.values())


def _checked(name: str, path: Path) -> str:
    if not _NAME.fullmatch(name):
        raise FormatError(
            f"{name!r} cannot be the name of a source",
            code="stream.source",
            path=str(path),
            requirement="ST-STR-060",
            hint="names are of letters, digits, '.', '_' and '-', at most 100, and begin with no '.'",
        )
    return name
