"""Bundles as one ZIP file with its members stored as they are, read; every byte around them is checked."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

from semtrace.errors import FormatError, IntegrityError, UsageError, WrongKindError
from semtrace.store.members import MANIFEST, MAX_MEMBERS, check_case, check_name, mapped, open_at_once, rank
from semtrace.store.zip_layout import Entry, Layout, local_header, too_many_entries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa


class ZipContainer:
    """A bundle as one ZIP file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes = mapped(path)
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
            ) from error
        if too_many_entries(memoryview(self._bytes), MAX_MEMBERS):
            raise FormatError(
                "too many members", code="bundle.members", path=str(path), requirement="ST-BND-005"
            )
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
        except PermissionError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
            ) from error
        except (
            zipfile.BadZipFile,
            OSError,
            ValueError,
            NotImplementedError,
            EOFError,
            struct.error,
        ) as error:
            if not _begins_as_zip(path):
                raise WrongKindError(
                    "not a ZIP file, and no directory: no bundle",
                    code="bundle.zip",
                    path=str(path),
                    requirement="ST-BND-002",
                    hint="to make a bundle of logs: semtrace import PATH -o OUT.semtrace; of a record stream: semtrace seal",
                ) from error
            raise FormatError(
                f"a damaged ZIP file: {error}",
                code="bundle.zip",
                path=str(path),
                requirement="ST-BND-002",
                hint="copy it again, or make the bundle again from its sources",
            ) from error
        self._members: dict[str, tuple[int, Entry]] = {}
        for info in infos:
            name = check_name(info.filename, str(path))
            problem = _zip_problem(info, known=name in self._members)
            if problem:
                raise FormatError(problem, code="bundle.zip", path=f"{path}!{name}", requirement="ST-BND-002")
            self._members[name] = (info.header_offset, Entry(name, info.file_size, info.CRC))
        check_case(self._members, str(path))
        self._check_layout()

    def _check_layout(self) -> None:
        """Refuse any byte around the members that is not the one that a writer writes."""
        layout = Layout.of([entry for _, entry in self._members.values()])
        problem, requirement = None, "ST-BND-009"
        if list(self._members) != sorted(self._members, key=rank):
            problem = f"the members are not in order: {MANIFEST}, then the others by name"
            requirement = "ST-BND-006"
        elif self._bytes.size != layout.size:
            problem = f"the file has {self._bytes.size} bytes, its members and directory need {layout.size}"
        elif self._bytes[layout.directory_offset :].to_pybytes() != layout.directory:
            problem = "the directory at its end is damaged, or not written as the standard says"
        where = str(self.path)
        for offset, entry in zip(layout.offsets, layout.entries, strict=True):
            if problem:
                break
            header = local_header(entry)
            if self._bytes[offset : offset + len(header)].to_pybytes() != header:
                problem, where = (
                    "its header is damaged, or not written as the standard says",
                    f"{where}!{entry.name}",
                )
        if problem:
            raise FormatError(problem, code="bundle.zip", path=where, requirement=requirement)

    def check_content(self) -> Iterator[str]:
        """The names of members whose content has not the CRC-32 that the ZIP file states (ST-BND-009)."""
        for name, (_, entry) in self._members.items():
            if zlib.crc32(memoryview(self.read(name)) if entry.size else b"") != entry.crc:
                yield name

    def names(self) -> list[str]:
        """The names of all members."""
        return sorted(self._members)

    def size(self, name: str) -> int:
        """The bytes of a member; 0 if there is none."""
        found = self._members.get(name)
        return 0 if found is None else found[1].size

    def read(self, name: str) -> pa.Buffer:
        """The bytes of a member, a slice of the mapped file."""
        found = self._members.get(name)
        if found is None:
            raise IntegrityError(
                "the member is missing",
                code="bundle.member",
                path=f"{self.path}!{name}",
                requirement="ST-BND-012",
            )
        offset, entry = found
        return self._bytes.slice(offset + len(local_header(entry)), entry.size)


def _zip_problem(info: zipfile.ZipInfo, *, known: bool) -> str | None:
    if known:
        return "the member stands in the file twice"
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        return "the member is compressed; members are stored"
    if info.flag_bits & 0x1:
        return "the member is encrypted"
    if stat.S_IFMT(info.external_attr >> 16) not in {0, stat.S_IFREG}:  # many writers leave the type out
        return "the member is not a plain file"
    return None


def _begins_as_zip(path: Path) -> bool:
    """Whether a file that cannot be read as ZIP was one, and is damaged."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


def is_bundle_file(path: Path) -> bool:
    """Whether a file is a ZIP file with a manifest, written as the standard says or not."""
    try:
        file = mapped(path)
        if file.size == 0 or too_many_entries(memoryview(file), MAX_MEMBERS):
            return False
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, EOFError, struct.error):
        return False
