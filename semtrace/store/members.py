"""Members of bundles: what they may be named, in what order they stand, and how their files are mapped."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import string
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from semtrace.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MANIFEST: Final = "semtrace.json"
MAX_MEMBERS: Final = 100_000
MAX_FOLDERS: Final = 8
_PARTS: Final = frozenset(string.ascii_letters + string.digits + "._-")


def check_name(name: str, where: str) -> str:
    """Refuse a member name that could leave the bundle or mean different things on different machines (ST-BND-003)."""
    parts = name.split("/")
    if (
        not all(part and set(part) <= _PARTS and not part.startswith(".") for part in parts)
        or len(name) > 255
    ):
        raise FormatError(
            f"member name {name!r} is not allowed",
            code="bundle.name",
            path=where,
            requirement="ST-BND-003",
            hint="names are parts of letters, digits, '.', '_' and '-', joined by '/'",
        )
    if len(parts) - 1 > MAX_FOLDERS:
        raise FormatError(
            f"member {name!r} lies in more than {MAX_FOLDERS} folders",
            code="bundle.members",
            path=where,
            requirement="ST-BND-005",
        )
    return name


def check_case(names: Iterable[str], where: str) -> None:
    """Refuse names that are one where upper and lower case are one (ST-BND-003)."""
    folded: set[str] = set()
    for name in names:
        if name.lower() in folded:
            raise FormatError(
                f"member name {name!r} is there twice, upper and lower case aside",
                code="bundle.name",
                path=where,
                requirement="ST-BND-003",
            )
        folded.add(name.lower())


def rank(name: str) -> tuple[bool, str]:
    """What members of a ZIP file are ordered by: the manifest first, then by name (ST-BND-006)."""
    return name != MANIFEST, name


def mapped(path: Path) -> pa.Buffer:
    """The bytes of a file, mapped; opened by Python, as Arrow opens no path that is not UTF-8.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open(path, "rb", opener=open_at_once) as file:  # Path.open takes no opener
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if facts.st_size == 0:
            return pa.py_buffer(b"")
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def open_at_once(path: str, flags: int) -> int:
    """What opens a file for Python's `open` without waiting for the writer of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a FIFO without a writer would block
