"""One object of an artifact store: a file that holds content as a zstd frame, named by the content's digest."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

import zstandard
from blake3 import blake3

from semtrace.errors import IntegrityError, UsageError
from semtrace.store.digests import show

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OBJECT_LIMIT: Final = 1 << 30
"""Bytes of content that an object may have, if not said otherwise."""

_LEVEL: Final = 3
_FLAGS: Final = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)  # a pipe must not hold up the reader


def object_bytes(content: bytes) -> bytes:
    """Content as an object holds it: one zstd frame with its size and a checksum."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    return compressor.compress(content)


@contextmanager
def open_object(path: Path, digest: bytes) -> Iterator[BinaryIO]:
    """Open an object's file, no link followed.

    Raises:
        FileNotFoundError: there is none.
        IntegrityError: it is no plain file.
        OSError: it cannot be opened.
    """
    try:
        file = open(path, "rb", opener=lambda name, _: os.open(name, _FLAGS))  # noqa: SIM115  # closed below
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
            raise damaged(path, digest, "is no plain file") from error
        raise
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise damaged(path, digest, "is no plain file")
        yield file


def read_object(file: BinaryIO, digest: bytes, limit: int) -> bytes:
    """The content of an open object.

    Args:
        file: the object's file.
        digest: the digest that its content must have.
        limit: bytes of content that it may have; the size that it claims is looked at before it is decompressed.

    Raises:
        IntegrityError: it is cut, corrupt, too large, or has other content.
    """
    path = file.name
    size = os.fstat(file.fileno()).st_size
    if size > limit + (limit >> 8) + 1024:  # what zstd can take for content that it cannot compress
        raise damaged(path, digest, f"has {size} bytes, more than an object can take")
    stored = file.read(size + 1)
    try:
        claimed = zstandard.frame_content_size(stored)
        if claimed < 0:
            raise damaged(path, digest, "does not state the size of its content")
        if claimed > limit:
            raise damaged(path, digest, f"claims {claimed} bytes of content, an object may have {limit}")
        content = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError, MemoryError) as error:
        raise damaged(path, digest, f"is cut or corrupt: {error}") from error
    if blake3(content).digest() != digest:
        raise damaged(path, digest, "has other content than its name says", requirement="ST-STO-005")
    return content


def damaged(path: object, digest: bytes, problem: str, *, requirement: str = "ST-STO-004") -> IntegrityError:
    """The error for an object that does not hold what its name says."""
    return IntegrityError(
        f"the object {show(digest)} {problem}",
        code="store.object",
        path=str(path),
        requirement=requirement,
        hint="put the content again: a damaged object is replaced",
    )


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Say what the operating system refused as an error of use."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the store cannot be used: {error.strerror or error}",
            code="store.unusable",
            path=str(error.filename or path),
        ) from error
