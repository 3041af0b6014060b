"""Content of artifacts in an exchange stream: read from the file when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from semtrace.errors import FormatError, IntegrityError, UsageError
from semtrace.records.trace import Content
from semtrace.stream.framing import FRAME_HEADER_BYTES, parse_frame_header
from semtrace.stream.messages import parse_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

    from semtrace.v1.stream_pb2 import Content as Part

PART_BYTES = 8 << 20
"""Content is cut into parts of this many bytes."""


@dataclass
class _Place:
    size: int
    held: int = 0
    offsets: list[int] = field(default_factory=list)


class StreamContent(Content):
    """Content by digest, as places in the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[bytes, _Place] = {}

    def add(self, part: Part, offset: int) -> None:
        """Take note of a part.

        Args:
            part: the part.
            offset: where the frame that holds it begins.

        Raises:
            FormatError: it does not go on where the part before it ended.
        """
        place = self._places.setdefault(part.digest, _Place(part.size))
        whole = place.held == place.size and place.offsets
        if whole or len(part.digest) != 32 or part.size != place.size or part.offset != place.held:
            raise FormatError(
                "content does not go on where the part before it ended",
                code="stream.content",
                path=f"{self._path}, byte {offset}",
                requirement="ST-STR-046",
            )
        if place.held + len(part.data) > place.size or (place.size and not part.data):
            raise FormatError(
                "a part of content that is empty, or longer than the whole",
                code="stream.content",
                path=f"{self._path}, byte {offset}",
                requirement="ST-STR-046",
            )
        place.held += len(part.data)
        place.offsets.append(offset)

    def unfinished(self) -> list[bytes]:
        """Digests of content of which parts are missing."""
        return [digest for digest, place in self._places.items() if place.held < place.size]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if it is not here.

        Raises:
            IntegrityError: the file was changed since it was opened.
        """
        place = self._places.get(digest)
        if place is None:
            return None
        try:
            with self._path.open("rb", buffering=0) as file:
                return b"".join(self._part(file, offset) for offset in place.offsets)
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(self._path)
            ) from error

    def _part(self, file: FileIO, offset: int) -> bytes:
        file.seek(offset)
        parsed = parse_frame_header(file.read(FRAME_HEADER_BYTES).ljust(FRAME_HEADER_BYTES))
        payload = file.read(parsed[1]) if parsed else b""
        if parsed is None or crc32(payload) != parsed[2]:
            raise IntegrityError(
                "the file was changed while it was read",
                code="stream.damaged",
                path=f"{self._path}, byte {offset}",
                requirement="ST-STR-031",
            )
        record, _ = parse_record(payload, f"{self._path}, byte {offset}")
        return record.content.data
