"""Containers: a directory, or one ZIP file with its members stored as they are. Nothing here knows what is inside."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from semtrace.errors import FormatError, IntegrityError, UsageError, WrongKindError
from semtrace.store.members import MANIFEST, MAX_FOLDERS, MAX_MEMBERS, check_case, check_name, mapped, rank
from semtrace.store.zip_container import ZipContainer
from semtrace.store.zip_layout import Entry, Layout, local_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

__all__ = [
    "MANIFEST",
    "MAX_FOLDERS",
    "MAX_MEMBERS",
    "Container",
    "DirectoryContainer",
    "ZipContainer",
    "check_name",
    "check_output",
    "open_container",
    "replacing",
    "write_container",
]


class Container(Protocol):
    """Reads the members of a bundle."""

    path: Path

    def names(self) -> list[str]:
        """The names of all members."""
        ...

    def read(self, name: str) -> pa.Buffer:
        """The bytes of a member, mapped rather than copied where that is possible."""
        ...

    def size(self, name: str) -> int:
        """The bytes of a member; 0 if there is none."""
        ...

    def check_content(self) -> Iterator[str]:
        """The names of members whose content has not the checksum that the container states, if it states one."""
        ...


class DirectoryContainer:
    """A bundle as a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """The names of all members; a link or special file is refused."""
        found: list[str] = []
        seen = 0
        pending = [("", self.path)]
        while pending:
            prefix, directory = pending.pop()
            for entry in _entries(directory):
                name = check_name(prefix + entry.name, str(self.path))
                if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                    raise FormatError(
                        "a link or special file is not allowed",
                        code="bundle.link",
                        path=f"{self.path}/{name}",
                        requirement="ST-BND-004",
                    )
                if entry.is_dir():
                    pending.append((name + "/", Path(entry.path)))
                else:
                    found.append(name)
                seen += 1  # folders too: a reader has to look into each of them
                if seen > MAX_MEMBERS:
                    raise FormatError(
                        "too many members and folders",
                        code="bundle.members",
                        path=str(self.path),
                        requirement="ST-BND-005",
                    )
        check_case(found, str(self.path))
        return sorted(found)

    def check_content(self) -> Iterator[str]:
        """A directory states no checksums."""
        yield from ()

    def size(self, name: str) -> int:
        """The bytes of a member; 0 if there is none, or none can have that name."""
        try:
            return (self.path / check_name(name, str(self.path))).lstat().st_size
        except (FormatError, OSError):
            return 0

    def read(self, name: str) -> pa.Buffer:
        """The bytes of a member, memory-mapped."""
        path = self.path / check_name(name, str(self.path))
        for part in (path, *path.parents):
            if part == self.path:
                break
            if part.is_symlink():
                raise FormatError(
                    "a link is not allowed", code="bundle.link", path=str(path), requirement="ST-BND-004"
                )
        try:
            return mapped(path)
        except OSError as error:
            raise IntegrityError(
                "the member is missing or unreadable",
                code="bundle.member",
                path=f"{self.path}/{name}",
                requirement="ST-BND-012",
            ) from error


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", code="file.unreadable", path=str(directory)
        ) from error


def open_container(path: Path) -> Container:
    """Open a directory or ZIP file as a bundle's container.

    Raises:
        UsageError: there is nothing at the path, or it cannot be read.
        FormatError: it is not a container.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
        ) from error
    if stat.S_ISDIR(mode):
        if not (path / MANIFEST).is_file():
            raise WrongKindError(
                f"the directory has no {MANIFEST}",
                code="bundle.manifest",
                path=str(path),
                requirement="ST-BND-001",
                hint="a bundle is what `semtrace import` writes; to make one of logs: semtrace import PATH -o OUT.semtrace",
            )
        return DirectoryContainer(path)
    if not stat.S_ISREG(mode):
        raise WrongKindError(
            "neither a directory nor a file", code="bundle.zip", path=str(path), requirement="ST-BND-001"
        )
    if path.stat().st_size == 0:
        raise WrongKindError("the file is empty", code="bundle.zip", path=str(path), requirement="ST-BND-002")
    return ZipContainer(path)


def check_output(path: Path, *, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuse an output path before the work for it is done.

    Args:
        path: where the output is to be.
        overwrite: whether what is there may be replaced.
        inputs: what is read for it; never replaced, whatever `overwrite` says.

    Raises:
        UsageError: it exists and may not be overwritten, or its folder is missing, or it is a directory that is no
            bundle, or neither a directory nor a file, or it is, holds or lies in an input.
    """
    try:
        _check_output(path, overwrite=overwrite, inputs=inputs)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        raise UsageError(
            f"cannot be looked at: {getattr(error, 'strerror', None) or error}",
            code="file.unreadable",
            path=str(path),
        ) from error


def _check_output(path: Path, *, overwrite: bool, inputs: Sequence[Path]) -> None:
    for read in inputs:
        real, target = read.resolve(), path.resolve()
        if target == real or real in target.parents or target in real.parents:
            raise UsageError(
                f"the output would replace or lie in what is read: {read}",
                code="file.same",
                path=str(path),
                hint="name another output; --force does not replace inputs",
            )
    if os.path.lexists(path) and not overwrite:
        raise _exists(path)
    if os.path.lexists(path) and not (path.is_file() or path.is_dir()):
        raise UsageError(
            "is no file and no directory; it is not replaced", code="file.special", path=str(path)
        )
    if not path.name or path.name == ".." or _is_other_directory(path):
        raise UsageError(
            "is a directory that holds other things than a bundle; it is not replaced",
            code="file.directory",
            path=str(path),
        )
    if not path.parent.is_dir():
        raise UsageError("the folder is missing", code="file.folder", path=str(path.parent))


@contextmanager
def replacing(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not.

    A process killed at any time, or a machine that loses its power, leaves at `path` what was there or what is new,
    never a part; when the block has ended, the disk has what is new. Where a directory
    is replaced, which takes two renames, it can leave nothing there and the old one beside it. Of several processes
    that write to one new path at once, one wins, and the others are told that it exists.

    Raises:
        UsageError: `path` exists and may not be overwritten, or its folder is missing or not writable, or it is
            a directory that is no bundle.
    """
    check_output(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
        _settle(temporary)
        if overwrite:
            _replace(temporary, path)
        else:
            _place(temporary, path)
        _settle_folder(path.parent)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror or error}", code="file.unwritable", path=str(path)
        ) from error
    finally:
        _remove(temporary)


def _settle(path: Path) -> None:
    """Wait until the disk has a file, or the files of a directory and their names."""
    if path.is_dir():
        for folder, _, names in os.walk(path):
            for name in names:
                _settle(Path(folder) / name)
            _settle_folder(Path(folder))
        return
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _settle_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder, where the system lets one ask for that."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems settle files only
            os.fsync(handle)
    finally:
        os.close(handle)


def _exists(path: Path) -> UsageError:
    return UsageError(
        "exists already", code="file.exists", path=str(path), hint="name another, or use --force"
    )


def _is_other_directory(path: Path) -> bool:
    """Whether it is a directory that one would not want replaced."""
    return path.is_dir() and not path.is_symlink() and not (path / MANIFEST).is_file() and any(path.iterdir())


def _place(temporary: Path, path: Path) -> None:
    """Give what was written its name, if nothing has it.

    Raises:
        FileExistsError: something has.
        OSError: it cannot be renamed.
    """
    if temporary.is_dir():
        if os.path.lexists(path):  # a rename would put a directory in the place of an empty one
            raise FileExistsError(errno.EEXIST, "exists already", str(path))
        try:
            temporary.rename(path)
        except OSError as error:
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "exists already", str(path)) from error
            raise
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):  # a file system without hard links
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        temporary.replace(path)


def _replace(temporary: Path, path: Path) -> None:
    both_files = temporary.is_file() and not (path.is_dir() and not path.is_symlink())
    if both_files or not os.path.lexists(path):
        temporary.replace(path)
        return
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.old")
    path.replace(aside)
    try:
        temporary.replace(path)
    except OSError:
        aside.replace(path)
        raise
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_container(
    path: Path, members: Sequence[tuple[str, bytes | memoryview]], *, directory: bool, overwrite: bool
) -> None:
    """Write the members as a directory or as one ZIP file, the manifest first, then by name; all of it or nothing.

    Raises:
        UsageError: the path exists and may not be overwritten, or cannot be written.
        FormatError: a name is not allowed, or there twice where upper and lower case are one.
    """
    check_case((check_name(name, str(path)) for name, _ in members), str(path))
    with replacing(path, overwrite=overwrite) as temporary:
        if directory:
            for name, content in members:
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            return
        ordered = sorted(members, key=lambda member: rank(member[0]))
        entries = [Entry(name, memoryview(content).nbytes, zlib.crc32(content)) for name, content in ordered]
        with temporary.open("wb") as file:
            for entry, (_, content) in zip(entries, ordered, strict=True):
                file.write(local_header(entry))
                file.write(content)
            file.write(Layout.of(entries).directory)
