"""Reading files that a user names."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from semtrace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def read_regular(path: Path, most: int) -> bytes:
    """The first bytes of a regular file; nothing that could go on for ever, or wait for a writer.

    Args:
        path: the file.
        most: how many bytes at most.

    Raises:
        UsageError: there is no such file, or it cannot be read, or it is a directory, a device or a FIFO.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError("is no regular file", code="file.special", path=str(path))
            return file.read(most)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            code="file.unreadable",
            path=str(path),
        ) from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a FIFO without a writer would block
