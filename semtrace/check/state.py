"""State: versions, who wrote them, and that what a reader knows of an appended state is accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.check.view import TraceView, first_rows, is_in, pair_keys
from semtrace.records.columns import NULL
from semtrace.records.enums import AccessMode, VersionMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_CHUNK: Final = 20_000
"""Reads whose ancestors are searched at one time, to bound memory."""


@rule("ST-STATE-002", "ST-STATE-003")
def versions_follow(view: TraceView) -> Iterator[Finding]:
    """A version follows from a lower version of its state; an appended one follows from something."""
    base, state = view.ints("state_versions", "base"), view.ints("state_versions", "state")
    rows = np.flatnonzero(base != NULL)
    yield from found(
        "ST-STATE-002",
        rows[(base[rows] >= rows) | (state[base[rows]] != state[rows])],
        lambda row: f"version {row} follows from version {base[row]}, which is not a lower row of its state",
        table="state_versions",
        column="base",
    )
    appended = view.raw("state_versions", "mode") == VersionMode.APPEND
    yield from found(
        "ST-STATE-003",
        appended & (base == NULL),
        "version {row} is appended to nothing",
        table="state_versions",
        column="base",
        hint="the first version of a state is of mode replace",
    )


@rule("ST-STATE-004")
def writes_match(view: TraceView) -> Iterator[Finding]:
    """Each written version has one write access, of its writer, and there are no others."""
    writer = view.ints("state_versions", "writer")
    writes = np.flatnonzero(view.raw("state_accesses", "mode") == AccessMode.WRITE)
    version = view.ints("state_accesses", "state_version")[writes]
    operation = view.ints("state_accesses", "operation")[writes]
    wrong = operation != writer[version]
    yield from found(
        "ST-STATE-004",
        writes[wrong],
        lambda row: f"access {row} is a write by an operation that is not the version's writer",
        table="state_accesses",
        column="operation",
    )
    written = np.zeros(len(writer), dtype=np.bool_)
    written[version[~wrong]] = True
    yield from found(
        "ST-STATE-004",
        (writer != NULL) & ~written,
        lambda row: f"version {row} was written by operation {writer[row]}, and no write access says so",
        table="state_versions",
        column="writer",
    )


@rule("ST-STATE-005")
def writers_of_one_task(view: TraceView) -> Iterator[Finding]:
    """The versions of a state are written by operations of one task."""
    writer = view.ints("state_versions", "writer")
    rows = np.flatnonzero(writer != NULL)
    if not len(rows):
        return
    state, task = view.ints("state_versions", "state")[rows], view.task[writer[rows]]
    wrong = rows[1:][(state[1:] == state[:-1]) & (task[1:] != task[:-1])]
    yield from found(
        "ST-STATE-005",
        wrong,
        lambda row: f"version {row} was written in another task than an earlier version of its state",
        table="state_versions",
        column="writer",
        hint="what another task left behind comes in as an initial version of a state of its own",
    )


def _earlier_written(view: TraceView) -> NDArray[np.int64]:
    """For each appended version the next version down its chain that an operation wrote, `NULL` if there is none."""
    base = view.ints("state_versions", "base")
    initial = view.ints("state_versions", "writer") == NULL
    appended = view.raw("state_versions", "mode") == VersionMode.APPEND
    below = np.where(appended, base, NULL)
    active = np.flatnonzero(below != NULL)
    while len(active := active[initial[below[active]]]):
        below[active] = below[below[active]]
        active = active[below[active] != NULL]
    return below


@rule("ST-STATE-006")
def appended_reads_accounted(view: TraceView) -> Iterator[Finding]:
    """Who reads an appended version has read the earlier ones of its chain, or waits for one that has."""
    if not (view.raw("state_versions", "mode") == VersionMode.APPEND).any():
        return
    view.need("ST-STATE-002", "ST-ORD-009", "ST-ORD-002", "ST-ORD-003", "ST-EDGE-002")
    below = _earlier_written(view)
    version = view.ints("state_accesses", "state_version")
    reads = np.flatnonzero(view.raw("state_accesses", "mode") == AccessMode.READ)
    known = pair_keys(view.ints("state_accesses", "operation")[reads], version[reads])
    asked = reads[below[version[reads]] != NULL]
    reader = view.ints("state_accesses", "operation")[asked]
    earlier = below[version[asked]]
    open_ = np.flatnonzero(~is_in(pair_keys(reader, earlier), known))
    wrong = [
        open_[at : at + _CHUNK][
            ~_read_before(view, reader[open_[at : at + _CHUNK]], earlier[open_[at : at + _CHUNK]], known)
        ]
        for at in range(0, len(open_), _CHUNK)
    ]
    missing = np.concatenate([*wrong, np.zeros(0, dtype=np.int64)])
    at_row = dict(zip(asked[missing].tolist(), earlier[missing].tolist(), strict=True))
    yield from found(
        "ST-STATE-006",
        asked[missing],
        lambda row: (
            f"access {row} reads a version appended after version {at_row[row]}, "
            "which neither the operation nor one that it waits for has read"
        ),
        table="state_accesses",
        column="state_version",
        hint="record a read of each version that is new to the reader",
    )


def _read_before(
    view: TraceView, reader: NDArray[np.int64], version: NDArray[np.int64], known: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Which readers wait, directly or not, for an operation that has read the version; searched in all at once.

    Args:
        view: the trace.
        reader: the operation of each question.
        version: the version of each question.
        known: all reads, as sorted pairs of operation and version.
    """
    offsets, source = view.edge_offsets, view.raw("edges", "source")
    by_version = (known & np.uint64(0xFFFFFFFF)).astype(np.int64)
    earliest = first_rows(by_version, view.rows("state_versions"), len(known))
    readers = np.append((known >> np.uint64(32)).astype(np.int64), view.rows("operations"))
    lowest = readers[earliest[version]]
    answered = np.zeros(len(reader), dtype=np.bool_)
    question, operation = np.arange(len(reader)), reader
    seen = np.zeros(0, dtype=np.uint64)
    while len(question):
        start, count = offsets[operation], offsets[operation + 1] - offsets[operation]
        question = np.repeat(question, count)
        within = np.arange(len(question)) - np.repeat(np.cumsum(count) - count, count)
        operation = source[np.repeat(start, count) + within].astype(np.int64)
        useful = (operation >= lowest[question]) & ~answered[question]
        places = np.unique(pair_keys(question[useful], operation[useful]))
        places = places[~is_in(places, seen)]
        seen = np.sort(np.concatenate([seen, places]))
        question = (places >> np.uint64(32)).astype(np.int64)
        operation = (places & np.uint64(0xFFFFFFFF)).astype(np.int64)
        answered[question[is_in(pair_keys(operation, version[question]), known)]] = True
        going = ~answered[question]
        question, operation = question[going], operation[going]
    return answered


STATE_RULES: Final[tuple[Rule[TraceView], ...]] = (
    versions_follow,
    writes_match,
    writers_of_one_task,
    appended_reads_accounted,
)
