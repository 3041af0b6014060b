"""Traces whose content lies in an artifact store: reading them, and moving content out of a bundle and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semtrace.errors import IntegrityError
from semtrace.records.columns import Columns
from semtrace.records.enums import Availability
from semtrace.records.trace import Content, Trace
from semtrace.store.digests import artifact_digest, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.store.artifact_store import ArtifactStore


class AttachedContent(Content):
    """A trace's own content, and that of a store beside it for what the trace does not have itself."""

    def __init__(self, own: Content, store: Content) -> None:
        self._own = own
        self._store = store

    def __iter__(self) -> Iterator[bytes]:
        """The digests of the trace's own content: what is embedded."""
        return iter(self._own)

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if neither has it."""
        content = self._own.get(digest)
        return self._store.get(digest) if content is None else content


class _Embedding(Content):
    """A trace's own content, and external content that must be in the store."""

    def __init__(self, trace: Trace, store: ArtifactStore, external: NDArray[np.bool_]) -> None:
        self._attached = AttachedContent(trace.content, store)
        artifacts = trace["artifacts"]
        digests, sizes = artifacts.digests(), artifacts.ints("size")
        self._store = store
        self._sizes = {digests[row]: int(sizes[row]) for row in np.flatnonzero(external).tolist()}

    def __iter__(self) -> Iterator[bytes]:
        own = set(self._attached)
        yield from own
        yield from (digest for digest in self._sizes if digest not in own)

    def get(self, digest: bytes) -> bytes | None:
        content = self._attached.get(digest)
        size = self._sizes.get(digest)
        if size is None:
            return content
        if content is None:
            raise _missing([digest], self._store)
        if len(content) != size:
            raise IntegrityError(
                f"{show(digest)} has {len(content)} bytes, the trace says {size}",
                code="artifact.size",
                path=str(self._store.path),
                requirement="ST-STO-007",
            )
        return content


def attach(trace: Trace, store: ArtifactStore) -> Trace:
    """The trace with its external content read from a store.

    Nothing is read now; an object that is damaged is found when its content is asked for.
    """
    return Trace(trace.tables, AttachedContent(trace.content, store))


def externalize(trace: Trace, store: ArtifactStore) -> Trace:
    """Put all embedded content into a store.

    Returns:
        The trace with that content external; its digests are the same.

    Raises:
        IntegrityError: content that is said to be embedded is not there, or does not have its digest or size.
        UsageError: the store cannot be written to.
    """
    artifacts = trace["artifacts"]
    embedded = artifacts.ints("availability") == Availability.EMBEDDED
    digests, sizes = artifacts.digests(), artifacts.ints("size")
    for row in np.flatnonzero(embedded).tolist():
        content = trace.content.get(digests[row])
        if content is None or len(content) != sizes[row] or artifact_digest(content) != digests[row]:
            problem = "is not there" if content is None else "does not have its digest or size"
            raise IntegrityError(
                f"the content {show(digests[row])} is said to be embedded and {problem}",
                code="artifact.content",
                path=f"artifacts[{row}]",
                requirement="ST-ART-005" if content is None else "ST-ART-007",
            )
        store.put(content)
    return Trace(_with_availability(trace, embedded, Availability.EXTERNAL))


def embed(trace: Trace, store: ArtifactStore) -> Trace:
    """Take all external content from a store.

    Returns:
        The trace with that content embedded, read from the store when it is asked for; its digests are the same.

    Raises:
        IntegrityError: the store does not have some of it.
    """
    external = trace["artifacts"].ints("availability") == Availability.EXTERNAL
    digests = trace["artifacts"].digests()
    absent = [digests[row] for row in np.flatnonzero(external).tolist() if digests[row] not in store]
    if absent:
        raise _missing(absent, store)
    tables = _with_availability(trace, external, Availability.EMBEDDED)
    return Trace(tables, _Embedding(trace, store, external))


def named_digests(trace: Trace) -> set[bytes]:
    """The digests of all content that a trace may have in a store: what is not withheld."""
    artifacts = trace["artifacts"]
    held = artifacts.ints("availability") != Availability.WITHHELD
    digests = artifacts.digests()
    return {digests[row] for row in np.flatnonzero(held).tolist()}


def _missing(digests: list[bytes], store: ArtifactStore) -> IntegrityError:
    more = f" and {len(digests) - 1} more" if len(digests) > 1 else ""
    return IntegrityError(
        f"the store does not have {show(digests[0])}{more}, which the trace keeps there",
        code="store.missing_object",
        path=str(store.path),
        requirement="ST-STO-010",
        hint="name the store that the content was put into",
    )


def _with_availability(trace: Trace, rows: NDArray[np.bool_], value: Availability) -> dict[str, Columns]:
    artifacts = trace["artifacts"]
    changed = np.where(rows, int(value), artifacts.raw("availability")).astype(np.uint8)
    at = artifacts.data.schema.get_field_index("availability")
    data = artifacts.data.set_column(at, artifacts.data.schema.field(at), pa.array(changed))
    return {**trace.tables, "artifacts": Columns(artifacts.spec, data)}
