"""What an adapter is, and how one is found.

An adapter turns one family of sources into a trace and says what it could not know. Adapters are found
through the entry-point group `semtrace.adapters`; each entry is an object with the members of `Adapter`.
"""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, Protocol, cast

from semtrace.build import explain_starts
from semtrace.errors import FormatError, UsageError, WrongKindError
from semtrace.store.container import MANIFEST
from semtrace.store.manifest import Loss
from semtrace.store.zip_container import is_bundle_file
from semtrace.stream.scan import is_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from semtrace.build import BuiltTrace, TraceBuilder
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

Effect = Literal["lost", "unknown", "estimated", "inferred", "ignored", "repaired"]

_PLACES: Final = 10
_SURE: Final = 50
"""Percent from which on an adapter is sure that a source is its own."""
_SHOWN: Final = 3
_LOOKED_AT: Final = 64
"""Files that are looked at to say why no adapter knows them, at most."""


class LossReport:
    """Collects what a conversion could not carry over, or had to assume; equal kinds are counted together."""

    def __init__(self) -> None:
        self._count: Counter[tuple[str, Effect, str]] = Counter()
        self._where: dict[tuple[str, Effect, str], list[str]] = defaultdict(list)

    def add(
        self, code: str, effect: Effect, message: str, *, where: str | None = None, count: int = 1
    ) -> None:
        """Note a loss.

        Args:
            code: a stable name of the kind of loss (`tokens.unknown`).
            effect: see `semtrace.store.manifest.Loss`.
            message: what happened, for people; the same text for every loss of the kind.
            where: the place in the sources (`events.jsonl:17`).
            count: how many at once.
        """
        key: tuple[str, Effect, str] = (code, effect, message)
        self._count[key] += count
        if where is not None and len(self._where[key]) < _PLACES:
            self._where[key].append(where)

    def items(self) -> list[Loss]:
        """The losses, by code."""
        return [
            Loss(
                code=code,
                effect=effect,
                message=message,
                count=count,
                where=self._where[code, effect, message],
            )
            for (code, effect, message), count in sorted(self._count.items())
        ]


@dataclass(frozen=True)
class ImportResult:
    """What an adapter made of its sources.

    Attributes:
        trace: the trace.
        execution: the native run beside it, if anything of it was observed.
        loss: what was lost, unknown, inferred or repaired.
        sources: the files that were read.
    """

    trace: Trace
    execution: Execution | None
    loss: list[Loss]
    sources: list[Path]


@dataclass(frozen=True)
class ImportOptions:
    """How to import.

    Attributes:
        progress: called with (bytes read, bytes in all) now and then.
        values: options of single adapters, by name.
    """

    progress: Callable[[int, int], None] | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    def refuse_unknown(self, adapter: str, known: Sequence[str]) -> None:
        """Refuse options that an adapter does not have.

        Args:
            adapter: the adapter's name.
            known: its options as a user writes them (`model=NAME`).

        Raises:
            UsageError: naming them, and the options that there are.
        """
        names = {option.partition("=")[0] for option in known}
        unknown = sorted(set(self.values) - names)
        if unknown:
            raise UsageError(
                f"no option {', '.join(unknown)}",
                code="adapter.option",
                hint=f"the options of {adapter} are: {', '.join(known) or 'none'}",
            )


class Adapter(Protocol):
    """One family of sources."""

    name: str
    """Short name, as in `--adapter NAME`."""
    version: str
    summary: str
    """One line for people: what it reads."""

    def detect(self, paths: Sequence[Path]) -> int:
        """How sure it is that these files and folders are its own: 0 (no) to 100 percent. Reads little, never raises."""
        ...

    def read(self, paths: Sequence[Path], options: ImportOptions) -> ImportResult:
        """Read the sources, which belong to one or several runs, and merge what belongs together.

        Raises:
            FormatError: nothing in the sources could be used.
            UsageError: a source cannot be read, or an option has no such value.
        """
        ...


class Exporter(Protocol):
    """An adapter that writes, too: the optional member `write`."""

    name: str
    version: str

    def write(self, trace: Trace, output: BinaryIO, options: ImportOptions) -> list[Loss]:
        """Write a valid trace in the family's form; what that cannot say is returned, as of an import.

        Raises:
            FormatError, ReplayError: nothing of the trace can be said in this form, or it lacks what the form needs.
            UsageError: an option has no such value.
        """
        ...


_STARTS: Final[tuple[tuple[str, str, Effect, str], ...]] = (
    (
        "delayed",
        "delays.inferred",
        "inferred",
        "an operation started later than what it waits for had ended: the rest is an external delay",
    ),
    (
        "unexplained",
        "starts.unexplained",
        "unknown",
        "the end of what an operation waits for is not known, so that its delay is not either",
    ),
    (
        "early",
        "edges.contradicted",
        "inferred",
        "an operation was seen to start before one that it is said to wait for had ended",
    ),
)


def finish(builder: TraceBuilder, loss: LossReport) -> BuiltTrace:
    """The end of every conversion: starts that nothing explains become delays, and the trace is built.

    An operation that states a delay of its own keeps it.

    Args:
        builder: with all rows of the trace.
        loss: told which starts were explained, and which could not be.

    Raises:
        FormatError: references form a cycle or leave their task, or a time is too great.
    """
    explained = explain_starts(builder)
    for attribute, code, effect, message in _STARTS:
        count = len(getattr(explained, attribute))
        if count:
            loss.add(code, effect, message, count=count)
    return builder.build()


def refuse_samples(count: object, where: str) -> None:
    """Refuse a request that asked for several answers: version 1 cannot say it (ST-PROD-007).

    Args:
        count: how many it asked for or got; anything but a whole number says nothing.
        where: the place in the sources.

    Raises:
        FormatError: it is more than one.
    """
    if isinstance(count, int) and count > 1:
        raise FormatError(
            f"a request with {count} answers (n > 1 sampling): a trace of version 1 cannot say this",
            code="adapter.samples",
            path=where,
            requirement="ST-PROD-007",
            hint="record with one answer to each request",
        )


@functools.cache
def adapters() -> dict[str, Adapter]:
    """All installed adapters by name."""
    found: dict[str, Adapter] = {}
    for entry in entry_points(group="semtrace.adapters"):
        adapter: Any = entry.load()
        found[adapter.name] = adapter
    return dict(sorted(found.items()))


def choose(paths: Sequence[Path], name: str | None = None) -> Adapter:
    """The adapter of this name, or the one that is surest of the sources.

    Raises:
        UsageError: there is no adapter of this name.
        WrongKindError, FormatError: no adapter knows the sources, two are equally sure, some are of another adapter's family than others,
            or one is what semtrace itself wrote.
    """
    known = adapters()
    if name is not None and name not in known:
        raise UsageError(
            f"no adapter {name!r}", code="adapter.unknown", hint=f"there are: {', '.join(known)}"
        )
    for path in paths:
        _refuse_own(path)
        _refuse_names(path)
    if name is not None:
        return known[name]
    sure = sorted(((adapter.detect(paths), adapter.name) for adapter in known.values()), reverse=True)
    shown = ", ".join(str(path) for path in paths)
    if not sure or sure[0][0] == 0:
        if all(path.is_file() and path.stat().st_size == 0 for path in paths):
            raise WrongKindError("is empty: there is nothing to import", code="adapter.none", path=shown)
        wide = next((path for path in files_in(paths)[:_LOOKED_AT] if is_wide(path)), None)
        if wide is not None:
            raise WrongKindError(
                "is UTF-16 or UTF-32: what is imported is UTF-8",
                code="adapter.encoding",
                path=str(wide),
                hint="write it again as UTF-8, as with iconv",
            )
        raise WrongKindError(
            "no adapter knows these sources",
            code="adapter.none",
            path=shown,
            hint=f"name one with --adapter; there are: {', '.join(known)}",
        )
    _refuse_mixed(paths, sure[0][1], known)
    if len(sure) > 1 and sure[1][0] == sure[0][0]:
        tied = ", ".join(adapter for confidence, adapter in sure if confidence == sure[0][0])
        raise FormatError(
            f"several adapters are equally sure of these sources: {tied}",
            code="adapter.tie",
            path=shown,
            hint="name one with --adapter",
        )
    return known[sure[0][1]]


def exporters() -> dict[str, Exporter]:
    """The installed adapters that can write, by name."""
    return {
        name: cast("Exporter", adapter) for name, adapter in adapters().items() if hasattr(adapter, "write")
    }


def exporter(name: str) -> Exporter:
    """The adapter of this name that can write.

    Raises:
        UsageError: there is none.
    """
    known = exporters()
    if name not in known:
        raise UsageError(
            f"no adapter {name!r} that writes", code="adapter.unknown", hint=f"there are: {', '.join(known)}"
        )
    return known[name]


def _refuse_names(path: Path) -> None:
    """Refuse a file whose name is no text: places in it could not be named in a trace."""
    inner = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    for each in (path, *inner):
        try:
            str(each).encode()
        except UnicodeEncodeError as error:
            raise FormatError(
                "the name of the file is not UTF-8, so that a trace cannot name it",
                code="adapter.name",
                path=os.fsencode(each).decode("utf-8", "backslashreplace"),
                hint="rename it",
            ) from error


def _refuse_own(path: Path) -> None:
    """Refuse what is no source because semtrace itself wrote it."""
    if _is_bundle(path):
        raise WrongKindError(
            "is a bundle already: there is nothing to import",
            code="adapter.bundle",
            path=str(path),
            hint="semtrace info and semtrace show say what is in it",
        )
    if path.is_file() and is_stream(path):
        raise FormatError(
            "is a record stream of a live recorder",
            code="adapter.stream",
            path=str(path),
            hint="make a bundle of it with semtrace seal",
        )


def _is_bundle(path: Path) -> bool:
    if path.is_dir():
        return (path / MANIFEST).is_file()
    if not path.is_file():  # a pipe would wait for ever
        return False
    return is_bundle_file(path)


def _refuse_mixed(paths: Sequence[Path], chosen: str, known: Mapping[str, Adapter]) -> None:
    """Refuse sources of which another adapter is sure and the chosen one knows nothing: they would be left out."""
    mine: list[str] = []
    others: dict[str, list[str]] = defaultdict(list)
    for path, confidence in _claims(paths, known, set()):
        if confidence[chosen]:
            mine.append(str(path))
        else:
            for name in (name for name, sure in confidence.items() if sure >= _SURE):
                others[name].append(str(path))
    if others:
        named = "; ".join(
            f"{name} is sure of {_some(of)}" for name, of in [(chosen, mine), *sorted(others.items())]
        )
        raise FormatError(
            f"sources of several families: {named}",
            code="adapter.mixed",
            path=", ".join(str(path) for path in paths),
            hint="import them one by one, or name one adapter with --adapter, which leaves out what is not its own",
        )


def _claims(
    paths: Sequence[Path], known: Mapping[str, Adapter], seen: set[Path]
) -> Iterator[tuple[Path, dict[str, int]]]:
    """How sure each adapter is of each source; of what is in a folder, where several are sure of the folder."""
    for path in paths:
        confidence = {name: adapter.detect([path]) for name, adapter in known.items()}
        if sum(sure >= _SURE for sure in confidence.values()) > 1 and path.is_dir():
            real = Path(os.path.realpath(path))
            if real not in seen:  # links can make folders lie in themselves
                seen.add(real)
                inner = sorted(each for each in path.iterdir() if not each.name.startswith("."))
                yield from _claims(inner, known, seen)
        else:
            yield path, confidence


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def read_as(name: str, paths: Sequence[Path]) -> tuple[str, ImportResult]:
    """Read sources with the adapter of this name: what sealing asks for, through the entry-point group `semtrace.sources`.

    Returns:
        The adapter's version, and what it made.

    Raises:
        UsageError: there is no adapter of this name.
        FormatError: nothing in the sources could be used.
    """
    adapter = choose(paths, name)
    return adapter.version, adapter.read(paths, ImportOptions())


def is_wide(path: Path) -> bool:
    """Whether a file seems to be text of two or four bytes a character, which no adapter reads."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return True
    return 3 * head.count(0) > len(head) and any(0 not in head[at::4] for at in range(4))


def files_in(paths: Sequence[Path], suffixes: Container[str] | None = None) -> list[Path]:
    """The files given, and those in the folders given, by name; of folders those with one of some suffixes, if these are told."""
    found: list[Path] = []
    for path in paths:
        try:
            inner = sorted(path.iterdir()) if path.is_dir() else [path]
        except OSError:
            continue
        found.extend(
            each
            for each in inner
            if each.is_file() and (each is path or suffixes is None or each.suffix in suffixes)
        )
    return found
