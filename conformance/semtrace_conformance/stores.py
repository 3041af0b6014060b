"""Looking at an artifact store that a testee has written to: made from the text of the standard alone."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any, Final

import zstandard
from blake3 import blake3

if TYPE_CHECKING:
    from pathlib import Path

MARKER: Final = "semtrace-store.json"
RECENT_S: Final = 3600
"""Objects that were marked within so many seconds were marked by the testee: what lies in the inputs is older."""
_OBJECT: Final = re.compile(r"(\.gc-)?([0-9a-f]{62})\.zst")


def observe_store(path: Path) -> dict[str, Any]:
    """What there is in a store: its objects with the size of their content, what is wrong, and what else lies there.

    An object that was set aside by garbage collection counts as there: readers find it (ST-STO-015).
    """
    objects: dict[str, int] = {}
    recent: list[str] = []
    problems: list[str] = []
    leftovers: list[str] = []
    try:
        marker = json.loads((path / MARKER).read_bytes())
    except (OSError, ValueError):
        marker = None
    if marker != {"format": "semtrace-store", "version": 1}:
        problems.append(f"{MARKER} is not what it must be")
    for file in sorted((path / "objects").rglob("*")):
        if file.is_dir() and not file.is_symlink():
            continue
        named = _OBJECT.fullmatch(file.name)
        if named is None:
            (leftovers if file.name.startswith(".tmp-") else problems).append(file.name)
            continue
        digest = f"blake3:{file.parent.name}{named[2]}"
        content = _content(file)
        if content is None or f"blake3:{blake3(content).hexdigest()}" != digest:
            problems.append(f"{digest} does not hold what its name says")
            continue
        objects[digest] = len(content)
        if time.time() - file.stat().st_mtime < RECENT_S:
            recent.append(digest)
    return {"objects": objects, "recent": recent, "problems": problems, "leftovers": leftovers}


def _content(file: Path) -> bytes | None:
    """The content of an object: of a plain file that is one frame, which states its size."""
    if file.is_symlink():
        return None
    stored = file.read_bytes()
    try:
        if zstandard.frame_content_size(stored) < 0:
            return None
        return zstandard.ZstdDecompressor().decompress(
            stored, max_output_size=1 << 26, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError, MemoryError):
        return None
