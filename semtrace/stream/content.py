"""Content of artifacts in a stream: read from the file when it is asked for."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from semtrace.errors import FormatError, UsageError
from semtrace.records.trace import Content
from semtrace.stream.messages import parse_record
from semtrace.stream.scan import payload_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import FileIO
    from pathlib import Path

    from numpy.typing import NDArray

    from semtrace.v1.stream_pb2 import Content as Part
    from semtrace.v1.stream_pb2 import Record

PART_BYTES = 8 << 20
"""Content is cut into parts of this many bytes."""


class _Reading:
    """The stream that content was last read from: it stays open, as neighbours are asked for one after the other."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: FileIO | None = None

    def record(self, path: Path, offset: int) -> Record:
        """The record whose frame begins at an offset.

        Raises:
            UsageError: the file cannot be read any more.
            IntegrityError: it was changed since it was read.
        """
        try:
            if self._file is None or path is not self._path:
                self.close()
                self._file, self._path = path.open("rb", buffering=0), path
            payload = payload_at(self._file, offset, path)
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
            ) from error
        return parse_record(payload, f"{path}, byte {offset}")[0]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    __del__ = close


class _Index:
    """Places of digests, found by digest; in 32 bytes and a few more for each."""

    def __init__(self, digests: NDArray[np.uint8]) -> None:
        """Sort them.

        Args:
            digests: shape (places, 32). Of equal ones the first counts.
        """
        words = digests.view(">u8")
        order = np.lexsort(words.T[::-1])
        ordered = words[order]
        first = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(order)]
        self.repeated = np.sort(order[~first])
        """Places whose digest stands before."""
        self._places = order[first]
        self._digests = digests[self._places].tobytes()
        beginning = digests[self._places, 0].astype(np.uint32) << 8 | digests[self._places, 1]
        self._starts = np.searchsorted(beginning, np.arange((1 << 16) + 1)).tolist()

    def __iter__(self) -> Iterator[bytes]:
        return (self._digests[at : at + 32] for at in range(0, len(self._digests), 32))

    def find(self, digest: bytes) -> int:
        """The place of a digest, -1 if it is not among them."""
        alike = digest[0] << 8 | digest[1]
        start, end = 32 * self._starts[alike], 32 * self._starts[alike + 1]
        at = self._digests.find(digest, start, end)
        while at % 32 and at >= 0:
            at = self._digests.find(digest, at + 1, end)
        return int(self._places[at // 32]) if at >= 0 else -1


@dataclass
class _Begun:
    size: int
    held: int = 0
    offsets: list[int] = field(default_factory=list)


class StreamContent(Content):
    """Content by digest, as places in the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading = _Reading()
        self._begun: dict[bytes, _Begun] = {}
        self._digests = bytearray()
        self._offsets = array(
            "q"
        )  # of content in one part, where it is; otherwise -1 - its place in `_parts`
        self._parts: list[list[int]] = []

    def add(self, part: Part, offset: int) -> None:
        """Take note of a part.

        Args:
            part: the part.
            offset: where the frame that holds it begins.

        Raises:
            FormatError: it does not go on where the part before it ended.
        """
        begun = self._begun.setdefault(part.digest, _Begun(part.size))
        if len(part.digest) != 32 or part.size != begun.size or part.offset != begun.held:
            raise self._does_not_go_on(offset)
        if begun.held + len(part.data) > begun.size or (begun.size and not part.data):
            raise FormatError(
                "a part of content that is empty, or longer than the whole",
                code="stream.content",
                path=f"{self._path}, byte {offset}",
                requirement="ST-STR-046",
            )
        begun.held += len(part.data)
        begun.offsets.append(offset)
        if begun.held == begun.size:
            del self._begun[part.digest]
            self._digests += part.digest
            if len(begun.offsets) == 1:
                self._offsets.append(offset)
            else:
                self._offsets.append(-1 - len(self._parts))
                self._parts.append(begun.offsets)

    def _does_not_go_on(self, offset: int) -> FormatError:
        return FormatError(
            "content does not go on where the part before it ended",
            code="stream.content",
            path=f"{self._path}, byte {offset}",
            requirement="ST-STR-046",
        )

    def finish(self) -> list[bytes]:
        """To be called after the last part.

        Returns:
            Digests of content of which parts are missing.

        Raises:
            FormatError: content stands twice.
        """
        if len(self._index.repeated):
            at = self._offsets[int(self._index.repeated[0])]
            raise self._does_not_go_on(at if at >= 0 else self._parts[-1 - at][0])
        return list(self._begun)

    @cached_property
    def _index(self) -> _Index:
        return _Index(np.frombuffer(bytes(self._digests), dtype=np.uint8).reshape(-1, 32))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._index)

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if it is not here.

        Raises:
            UsageError: the file cannot be read any more.
            IntegrityError: it was changed since it was opened.
        """
        place = self._index.find(digest)
        if place < 0:
            return None
        at = self._offsets[place]
        offsets = [at] if at >= 0 else self._parts[-1 - at]
        return b"".join(self._reading.record(self._path, offset).content.data for offset in offsets)


class CaptureContent(Content):
    """Content of captured artifacts by digest, as places in the captures."""

    def __init__(
        self,
        paths: Sequence[Path],
        digests: NDArray[np.uint8],
        files: NDArray[np.int64],
        offsets: NDArray[np.int64],
    ) -> None:
        """Take note of where content is.

        Args:
            paths: the captures.
            digests: of each content its digest, shape (contents, 32).
            files: for each, which capture it is in.
            offsets: for each, the byte at which its record begins; -1 if it is empty and no record states it.
        """
        self._paths = paths
        self._reading = _Reading()
        self._index = _Index(digests)
        self._files, self._offsets = files, offsets

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._index)

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if it is not here.

        Raises:
            UsageError: the capture cannot be read any more.
            IntegrityError: it was changed since it was read.
        """
        place = self._index.find(digest)
        if place < 0:
            return None
        offset = int(self._offsets[place])
        if offset < 0:
            return b""
        path = self._paths[int(self._files[place])]
        return self._reading.record(path, offset).captured_artifact.data
